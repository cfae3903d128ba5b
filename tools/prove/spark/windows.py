"""A program that counts and sums by key and time window, from topic to topic exactly once; and the same as one batch.

It resumes from its checkpoint, restarts its query whenever that fails, and exits after the command to finish.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.pipelines.session import make_session
from tools.prove.spark.programs import JAVA_OPTIONS, report_event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW_MS = 2000
LATE_MS_MAX = 30_000
LAST_KEY, LAST_NUMBER = "last", -1  # key and number of records that only advance time; their window stays open
TASKS = 2
RETRY_S = 0.3
POLL_S = 0.05
FINISH = "finish"
CONF = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(TASKS),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@dataclass(frozen=True)
class Route:
    """Arguments of the program."""

    master: str
    bootstrap: str
    source: str
    target: str
    checkpoint: str
    batch_file: str  # where the result of the batch is written
    rows_max: int  # maximum rows of a micro-batch

    def text(self) -> str:
        return json.dumps(asdict(self))


def result(start_ms: int, key: str, count: int, total: int) -> str:
    """Return a row of the output, as `_windows` writes it."""
    return f"{start_ms} {key} {count} {total}"


class Windows:
    """The query, restarted until a command arrives."""

    def __init__(self, spark: SparkSession, route: Route) -> None:
        self._spark = spark
        self._route = route
        self._commands: list[str] = []
        self._last_batch: tuple[str, int] | None = None

    def run(self) -> None:
        """Run the query until a command arrives, then the batch if the command is to finish."""
        threading.Thread(target=self._read_commands, daemon=True).start()
        while not self._commands:
            try:
                self._stream()
            except Exception as error:  # the next start has to recover from any failure
                report_event("failed", text=str(error)[:2000])
                time.sleep(RETRY_S)
        if FINISH in self._commands:
            rows = [row.value for row in self._windows(self._loaded(self._spark.read)).collect()]
            Path(self._route.batch_file).write_text(json.dumps(rows))
            report_event("finished", rows=len(rows))

    def _read_commands(self) -> None:
        for line in sys.stdin:
            self._commands.append(line.strip())
        self._commands.append("exit")

    def _stream(self) -> None:
        frame = self._loaded(self._spark.readStream, maxOffsetsPerTrigger=str(self._route.rows_max))
        query = (
            self._windows(frame)
            .writeStream.format("headrace")
            .outputMode("append")
            .options(**self._servers, topic=self._route.target, checkpointLocation=self._route.checkpoint)
            .start()
        )
        try:
            while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # Spark takes fractions of a second
                self._report_progress(query)
                if self._commands:
                    return
        finally:
            query.stop()

    @property
    def _servers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._route.bootstrap}

    def _loaded(self, reader: Any, **options: str) -> DataFrame:
        given = {**self._servers, "subscribe": self._route.source, "startingOffsets": "earliest", **options}
        loaded: DataFrame = reader.format("headrace").options(**given).load()
        return loaded

    def _windows(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return (
            frame.selectExpr("timestamp", "cast(key as string) key", "cast(cast(value as string) as bigint) number")
            .withWatermark("timestamp", f"{LATE_MS_MAX} milliseconds")
            .groupBy(f.window("timestamp", f"{WINDOW_MS} milliseconds"), "key")
            .agg(f.count("number").alias("count"), f.sum("number").alias("total"))
            .where("total >= 0")  # not by key: Spark would filter out those records before it looks at their times
            .selectExpr("key", "concat_ws(' ', unix_millis(window.start), key, count, total) value")
        )

    def _report_progress(self, query: Any) -> None:
        progress = query.lastProgress
        if progress is None or self._last_batch == (progress.runId, progress.batchId) or not progress.sources:
            return
        self._last_batch = progress.runId, progress.batchId
        end = json.loads(progress.sources[0].endOffset or "{}")
        report_event(
            "batch",
            batch=progress.batchId,
            position=sum(end.get(self._route.source, {}).values()),
            dropped=sum(one.numRowsDroppedByWatermark for one in progress.stateOperators),
        )


def main(text: str) -> None:
    route = Route(**json.loads(text))
    spark = make_session("windows", master=route.master, conf=CONF)
    spark.sparkContext.setLogLevel("ERROR")
    report_event("ready")
    Windows(spark, route).run()
    spark.stop()
    report_event("ended")


if __name__ == "__main__":
    main(sys.argv[1])
