"""Sessions close when the watermark passes them: the last click of the file, hours later, closes all others."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.testing.pipelines import run_pipeline

HERE = Path(__file__).parent


def test_clicks_become_visits(headrace_spark: SparkSession) -> None:
    clicks = [json.loads(line) for line in (HERE / "clicks.jsonl").read_text().splitlines()]
    rows = run_pipeline(HERE, {"clicks": clicks}, spark=headrace_spark)["visits"]
    found = sorted(
        (row["visitor"], row["began"][11:16], row["clicks"], row["first_page"], row["last_page"]) for row in rows
    )
    assert found == [
        ("ada", "08:00", 3, "/", "/cart"),
        ("ada", "09:30", 1, "/", "/"),
        ("grace", "08:05", 1, "/sale", "/sale"),
    ]
