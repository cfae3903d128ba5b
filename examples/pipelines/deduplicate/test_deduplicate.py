"""One record per id, no matter which of its copies."""

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.testing.pipelines import run_pipeline

HERE = Path(__file__).parent


def test_each_payment_is_there_once(headrace_spark: SparkSession) -> None:
    payments = (HERE / "payments.jsonl").read_text().splitlines()
    # One duplicate is in the same batch, another in a later one.
    rows = run_pipeline(HERE, {"payments": payments}, spark=headrace_spark, overrides={"maxOffsetsPerTrigger": "4"})[
        "once"
    ]
    assert Counter((row["id"], row["cents"]) for row in rows) == Counter([("a1", 500), ("a2", 500), ("b1", 900)])
