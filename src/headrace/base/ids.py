"""Distinct types for ids, offsets and epochs, so that a broker id is never passed as a partition."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from random import Random
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
Uuid = NewType("Uuid", bytes)  # always 16 bytes, as on the wire

ZERO_UUID = Uuid(bytes(16))
METADATA_TOPIC_ID = Uuid(bytes(15) + b"\x01")
METADATA_TOPIC = "__cluster_metadata"
NO_NODE = NodeId(-1)


class TopicPartition(NamedTuple):
    """A partition of a topic, by name and number; its text is `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def indexes_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition indexes of each topic, in the given order."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


def new_uuid(random: Random) -> Uuid:
    """Return a random version-4 UUID; like Kafka, never one whose text starts with a dash and looks like an option."""
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        uuid = Uuid(bytes(raw))
        if not uuid_text(uuid).startswith("-"):
            return uuid


def uuid_text(uuid: bytes) -> str:
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def uuid_from_text(text: str) -> Uuid:
    """Parse a UUID as Kafka prints it: 22 characters of URL-safe base64. Raise ValueError if it is anything else."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a UUID in URL-safe base64") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} has {len(raw)} bytes, a UUID has 16")
    return Uuid(raw)
