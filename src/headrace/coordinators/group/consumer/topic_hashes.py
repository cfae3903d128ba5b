"""The hash of a group's topics: when it changes, the group needs a new assignment (KIP-1101).

As in Kafka, the hash of an existing topic is XXH3 over its id, name, number of partitions and the racks of each partition. The hash of a
group is XXH3 over the hashes of its topics, ordered by name, or 0 if it has no topics.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from headrace.base.ids import Uuid
from headrace.coordinators.group.xxh3 import xxh3_64
from headrace.metadata.image import Image, Topic

TOPIC_CACHE_SIZE = 20_000
_MAGIC = b"\x00"
_INT, _LONG, _UNSIGNED = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<Q")

_Racks = tuple[tuple[str, ...], ...]  # sorted racks of each partition; empty if no broker has a rack


class _Known(NamedTuple):
    id: Uuid
    partitions: int
    racks: _Racks
    hash: int


class TopicHashes:
    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def of_group(self, names: Sequence[str], image: Image) -> int:
        """Return the hash of these topics; `names` must be ascending."""
        racks = {broker.id: broker.rack for broker in image.brokers.values() if broker.rack is not None}
        hashes = [
            _UNSIGNED.pack(self._of_topic(topic, racks))
            for name in names
            if (topic := image.topics.get(name)) is not None
        ]
        return _signed(xxh3_64(b"".join(hashes))) if hashes else 0

    def _of_topic(self, topic: Topic, racks: dict[int, str]) -> int:
        known = self._known.get(topic.name)
        shape = partition_racks(topic, racks)
        if (
            known is not None
            and known.id == topic.id
            and known.partitions == len(topic.partitions)
            and known.racks == shape
        ):
            return known.hash
        if len(self._known) >= TOPIC_CACHE_SIZE:
            self._known.clear()
        self._known[topic.name] = _Known(topic.id, len(topic.partitions), shape, topic_hash(topic, shape))
        return self._known[topic.name].hash


def partition_racks(topic: Topic, racks: dict[int, str]) -> _Racks:
    if not racks:
        return ()
    return tuple(
        tuple(sorted(racks[replica] for replica in partition.replicas if replica in racks))
        for partition in topic.partitions
    )


def topic_hash(topic: Topic, racks: _Racks) -> int:
    most, least = struct.unpack(">qq", topic.id)
    parts = [_MAGIC, _LONG.pack(most), _LONG.pack(least), _text(topic.name), _INT.pack(len(topic.partitions))]
    for index in range(len(topic.partitions)):
        parts.append(_INT.pack(index))
        for rack in racks[index] if racks else ():
            parts += (_INT.pack(len(rack.encode("utf-16-le")) // 2), _text(rack))
    return xxh3_64(b"".join(parts))


def _text(text: str) -> bytes:
    """Encode a string as Kafka's hashing library does: UTF-16, followed by the number of code units."""
    encoded = text.encode("utf-16-le")
    return encoded + _INT.pack(len(encoded) // 2)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
