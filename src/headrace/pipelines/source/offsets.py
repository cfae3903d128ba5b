"""The position of a stream, in the form in which Spark's checkpoint stores it.

    {"orders": {"0": 120, "1": 90}, "#ids": {"orders": "jK0…"}, "#lost": {"orders": {"1": 30}}}

Topics and partitions are written as Spark's own Kafka source writes them, so its checkpoints can be taken over. Keys that start with #,
which no topic name can, are Headrace's: topic ids, which reveal that a topic was deleted and recreated, and the number of offsets that
were skipped because their records were gone. Spark compares offsets as text, so the order of the keys is fixed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition

IDS, LOST = "#ids", "#lost"

JsonOffset = dict[str, Any]


class StreamOffset(Struct, frozen=True):
    offsets: dict[TopicPartition, int]  # offset of the next record to read
    ids: dict[str, str] = {}  # topic ids, where the cluster has them
    lost: dict[TopicPartition, int] = {}

    def to_json(self) -> JsonOffset:
        found: JsonOffset = dict(_nested(self.offsets))
        topics = found.keys()
        ids = {topic: self.ids[topic] for topic in sorted(self.ids) if topic in topics}
        if ids:
            found[IDS] = ids
        lost = {partition: count for partition, count in self.lost.items() if count}
        if lost:
            found[LOST] = _nested(lost)
        return found

    @property
    def topics(self) -> set[str]:
        return {partition.topic for partition in self.offsets}


def read_offset(found: Mapping[str, Any]) -> StreamOffset:
    """Parse an offset from a checkpoint; raise ConfigError if neither Headrace nor Spark's Kafka source wrote it."""
    try:
        offsets = _flat({topic: some for topic, some in found.items() if not topic.startswith("#")})
        ids = {str(topic): str(topic_id) for topic, topic_id in found.get(IDS, {}).items()}
        return StreamOffset(offsets, ids, _flat(found.get(LOST, {})))
    except (AttributeError, TypeError, ValueError):
        shown = str(found)[:200]
        raise ConfigError(f"the checkpoint holds no offsets of topics, but {shown}: is it another query's?") from None


def _nested(values: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), value in sorted(values.items()):
        found[topic][str(partition)] = value
    return dict(found)


def _flat(found: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(value)
        for topic, some in found.items()
        for partition, value in some.items()
    }
