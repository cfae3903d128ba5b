"""Every reading becomes a row in its day's partition."""

from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.testing.pipelines import run_pipeline

HERE = Path(__file__).parent


def test_readings_become_a_table(headrace_spark: SparkSession) -> None:
    readings = (HERE / "readings.jsonl").read_text().splitlines()
    rows = run_pipeline(HERE, {"readings": readings}, spark=headrace_spark, partitions=2)["table"]
    found = sorted((row["sensor"], row["celsius"] or 0.0, row["day"]) for row in rows)
    assert found == [
        ("cellar", 0.0, date(2030, 5, 2)),
        ("cellar", 8.25, date(2030, 5, 1)),
        ("roof", 11.25, date(2030, 5, 2)),
        ("roof", 11.5, date(2030, 5, 1)),
    ]
    assert len({(row["partition"], row["offset"]) for row in rows}) == 4
