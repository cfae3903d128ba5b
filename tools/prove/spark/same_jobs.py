"""Reads of topics with the options that both connectors have."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tools.prove.spark.topics import CODECS, COMMITTED, PLAIN, RECORDS, STEP_MS, TRIMMED

TASKS_MIN = 7
_MIDDLE_MS, _LATE_MS = STEP_MS * RECORDS // 3, STEP_MS * RECORDS * 2 // 3
_ALL = ",".join((PLAIN, COMMITTED, TRIMMED, *(f"codec-{codec}" for codec in CODECS)))
_FIRST = {"startingOffsets": "earliest"}
_READ_COMMITTED = {"kafka.isolation.level": "read_committed"}


@dataclass(frozen=True)
class Job:
    name: str
    options: dict[str, str]

    def options_at(self, base_ms: int) -> dict[str, str]:
        """Return the options with MIDDLE and LATE replaced by times relative to those of the records."""
        return {
            name: value.replace("MIDDLE", str(base_ms + _MIDDLE_MS)).replace("LATE", str(base_ms + _LATE_MS))
            for name, value in self.options.items()
        }


def _by_partition(*values: int | str) -> str:
    text = json.dumps({PLAIN: {str(partition): value for partition, value in enumerate(values)}})
    return text.replace('"MIDDLE"', "MIDDLE").replace('"LATE"', "LATE")


BATCHES = (
    Job("all topics", {"subscribe": _ALL, "includeHeaders": "true"}),
    Job("all topics, read committed", {"subscribe": _ALL, "includeHeaders": "true", **_READ_COMMITTED}),
    Job("without headers", {"subscribe": PLAIN}),
    Job("by pattern", {"subscribePattern": "codec-.*|plain", "includeHeaders": "true"}),
    Job("assigned", {"assign": json.dumps({PLAIN: [1], "codec-zstd": [0, 1]})}),
    Job(
        "by offsets",
        {"subscribe": PLAIN, "startingOffsets": _by_partition(17, -2, -2), "endingOffsets": _by_partition(250, 99, -1)},
    ),
    Job(
        "from a time",
        {"subscribe": PLAIN, "startingTimestamp": "MIDDLE", "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Job("to a time", {"subscribe": PLAIN, "endingTimestamp": "LATE"}),
    Job(
        "between times of partitions",
        {
            "subscribe": PLAIN,
            "startingOffsetsByTimestamp": _by_partition("MIDDLE", 0, 0),
            "endingOffsetsByTimestamp": _by_partition("LATE", "MIDDLE", "LATE"),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ),
    Job("in many tasks", {"subscribe": PLAIN, "minPartitions": str(TASKS_MIN)}),
    Job("in short ranges", {"subscribe": f"{PLAIN},{COMMITTED}", "maxRecordsPerPartition": "70", **_READ_COMMITTED}),
    Job("a log start that has moved", {"subscribe": TRIMMED, "failOnDataLoss": "false", **_FIRST}),
)
STREAMS = (
    Job("a stream in two steps", {"subscribe": "stream-a", "maxOffsetsPerTrigger": "60", **_FIRST}),
    Job("by a pattern that a new topic matches", {"subscribePattern": "stream-.*", **_FIRST}),
    Job("only what is committed", {"subscribe": COMMITTED, "maxOffsetsPerTrigger": "30", **_FIRST, **_READ_COMMITTED}),
    Job("assigned, in tasks", {"assign": json.dumps({"stream-a": [1]}), "minPartitions": "4", **_FIRST}),
    Job(
        "from offsets, all codecs",
        {
            "subscribe": ",".join(f"codec-{codec}" for codec in CODECS),
            "startingOffsets": json.dumps({f"codec-{codec}": {"0": 100, "1": -2} for codec in CODECS}),
        },
    ),
    Job(
        "from a time, in a stream",
        {"subscribe": PLAIN, "startingTimestamp": "MIDDLE", "startingOffsetsByTimestampStrategy": "latest"},
    ),
)
