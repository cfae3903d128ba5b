"""A program that copies numbers exactly once while a task of each batch pauses, so that Spark runs it twice.

`python -m tools.prove.spark.speculation ROUTE` exits when everything is read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.pipelines.session import make_session
from tools.prove.spark.programs import JAVA_OPTIONS, report_event

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS = 4
# With these pauses either the first attempt or the second may finish first.
PAUSES_S = (0.8, 1.4, 2.0, 6.0)
END_S_MAX = 600.0
CONF = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.memory": "1g",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
}


@dataclass(frozen=True)
class Route:
    """Arguments of the program."""

    master: str
    bootstrap: str
    source: str
    target: str
    checkpoint: str
    attempts: str  # a folder with an empty file for each attempt of a task
    rows_max: int  # maximum rows of a micro-batch

    def text(self) -> str:
        return json.dumps(asdict(self))


def attempt_file(stage: int, partition: int, attempt: int) -> str:
    return f"{stage}-{partition}-{attempt}"


def runs_of_tasks(attempts: Path) -> tuple[int, int]:
    """Return the number of tasks, and how many of them ran more than once."""
    files = [path.name.rsplit("-", 1)[0] for path in attempts.iterdir()]
    tasks = set(files)
    return len(tasks), sum(files.count(task) > 1 for task in tasks)


def copy_with_pauses(attempts: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that copies batches; the first attempt of one task per stage pauses in the middle."""

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        stage, partition, attempt = task.stageId(), task.partitionId(), task.attemptNumber()
        Path(attempts, attempt_file(stage, partition, attempt)).touch()
        for batch in batches:
            if partition == stage % PARTITIONS and attempt == 0:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                time.sleep(PAUSES_S[stage % len(PAUSES_S)])
                yield batch.slice(half)
            else:
                yield batch

    return copy


def main(text: str) -> None:
    route = Route(**json.loads(text))
    spark = make_session("speculation", master=route.master, conf=CONF)
    spark.sparkContext.setLogLevel("ERROR")
    servers = {"kafka.bootstrap.servers": route.bootstrap}
    given = {"subscribe": route.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(route.rows_max)}
    records = spark.readStream.format("headrace").options(**servers, **given).load().select("value")
    copied: Any = records.mapInArrow(copy_with_pauses(route.attempts), "value binary")
    writer = copied.writeStream.format("headrace").options(**servers, topic=route.target)
    query = writer.option("checkpointLocation", route.checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(END_S_MAX), f"the query did not end within {END_S_MAX:.0f} s"
    report_event("done", batches=len(query.recentProgress))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
