"""The program of the check secured-node: the same Spark jobs by a user with permissions and by one without."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.pipelines.session import make_session
from tools.prove.spark.programs import JAVA_OPTIONS, report_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM_S_MAX = 120
_SHOWN_CHARACTERS = 4000


def copy(spark: SparkSession, login: dict[str, str], source: str, target: str, folder: Path) -> None:
    """Stream one topic into another, exactly once, up to its current end."""
    query = (
        spark.readStream.format("headrace")
        .options(**login, subscribe=source, startingOffsets="earliest")
        .load()
        .select("key", "value")
        .writeStream.format("headrace")
        .options(**login, topic=target, progressReplicationFactor="1", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(STREAM_S_MAX), f"the stream does not end within {STREAM_S_MAX} s"


def count(spark: SparkSession, login: dict[str, str], topic: str) -> int:
    frame = spark.read.format("headrace").options(**login, subscribe=topic)
    return frame.option("kafka.isolation.level", "read_committed").load().count()


def write(spark: SparkSession, login: dict[str, str], topic: str) -> None:
    rows = spark.range(0, 10).selectExpr("cast(id as string) value")
    rows.write.format("headrace").options(**login, topic=topic, progressReplicationFactor="1").mode("append").save()


def attempt(name: str, work: Any) -> None:
    """Run the work and report its result or its error."""
    try:
        report_event(name, result=work(), error=None)
    except Exception as error:
        report_event(name, result=None, error=str(error)[:_SHOWN_CHARACTERS])


def main(text: str) -> None:
    job = json.loads(text)
    permitted, refused, source, target = (job[name] for name in ("permitted", "refused", "source", "target"))
    spark = make_session("secured", master="local[2]", conf={"spark.driver.extraJavaOptions": JAVA_OPTIONS})
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="secured-") as folder:
        attempt("copied", lambda: copy(spark, permitted, source, target, Path(folder, "permitted")))
        attempt("counted", lambda: count(spark, permitted, target))
        attempt("refused-stream", lambda: copy(spark, refused, source, target, Path(folder, "refused")))
        attempt("refused-read", lambda: count(spark, refused, target))
        attempt("refused-write", lambda: write(spark, refused, target))
    report_event("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
