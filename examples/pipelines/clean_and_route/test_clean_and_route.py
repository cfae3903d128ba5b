"""Valid orders go to their country's topic; invalid ones are kept with the reason."""

from pathlib import Path

from pyspark.sql import SparkSession

from headrace.testing.pipelines import run_pipeline

HERE = Path(__file__).parent


def test_orders_are_cleaned_and_routed(headrace_spark: SparkSession) -> None:
    lines = (HERE / "incoming-orders.jsonl").read_text().splitlines()
    rows = run_pipeline(HERE, {"incoming-orders": lines}, spark=headrace_spark)
    assert sorted(row["id"] for row in rows["by_country"]) == [1, 2, 6]
    assert [record.key for record in rows.topics["orders-de"]] == [b"1", b"6"]
    assert [record.key for record in rows.topics["orders-fr"]] == [b"2"]
    assert rows["by_country"][0] == {"id": 1, "country": "DE", "email": "ada@example.com", "amount": 12.5}
    reasons = {record.key: record.headers["reason"] for record in rows.topics["rejected-orders"]}
    assert reasons == {b"3": b"its amount is not positive", b"4": b"it has no country"}
    unreadable = [record.value for record in rows.topics["incoming-orders-unreadable"]]
    assert unreadable == [lines[4].encode(), lines[5].encode()]  # once each, although two sinks read the orders
