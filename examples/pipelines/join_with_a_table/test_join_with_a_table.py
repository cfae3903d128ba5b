"""Every order comes out once, with its customer if the table has one; a test can replace the folder's table."""

from pathlib import Path

from pyspark.sql import SparkSession

from headrace.testing.pipelines import run_pipeline

HERE = Path(__file__).parent


def test_orders_get_the_names_of_their_customers(headrace_spark: SparkSession) -> None:
    orders = (HERE / "orders.jsonl").read_text().splitlines()
    rows = run_pipeline(HERE, {"orders": orders}, spark=headrace_spark)["enriched"]
    assert [(row["id"], row.get("name"), row.get("city")) for row in sorted(rows, key=lambda row: row["id"])] == [
        (10, "Ada", "London"),
        (11, "Grace", "New York"),
        (12, "Ada", "London"),
        (13, None, None),
    ]
    customers = [{"id": 99, "name": "Edsger", "city": "Austin"}]
    rows = run_pipeline(HERE, {"orders": orders[3:], "customers": customers}, spark=headrace_spark)["enriched"]
    assert [row["name"] for row in rows] == ["Edsger"]
