"""The bytes that members of a classic group exchange through the coordinator, which does not look inside.

They come from other clients, so decoders return a value or raise DecodeError. Unknown versions begin like the newest
known one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from struct import Struct as Packed
from typing import Annotated, Any, NamedTuple

from headrace.base.ids import TopicPartition, indexes_by_topic
from headrace.client.group.membership import NO_GENERATION
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Field, Struct, data
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace.protocol.types import Int32, String

PROTOCOL_TYPE = "consumer"
SUBSCRIPTION_VERSION_MAX = 3
ASSIGNMENT_VERSION_MAX = 3
_VERSION = Packed(">h")
_GENERATION = Packed(">i")


class Subscribed(NamedTuple):
    """A member's subscription, as sent when it joins."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION  # generation in which it was assigned `owned`
    rack: str | None = None
    instance_id: str | None = None  # set by the coordinator, not by the member
    user_data: bytes = b""


@data("0-1")
class StickyData(Struct):
    """User data that members with the sticky assignor add to their subscription; it has no version prefix."""

    class PreviousTopic(Struct):
        topic: String = ""
        partitions: list[Int32] = []

    previous_assignment: list[PreviousTopic] = []
    generation: Annotated[Int32, Field("1+", ignorable=True)] = NO_GENERATION


def encode_subscription(subscribed: Subscribed) -> bytes:
    subscription = ConsumerProtocolSubscription(
        topics=sorted(subscribed.topics),
        user_data=subscribed.user_data or None,
        owned_partitions=by_topic(subscribed.owned, ConsumerProtocolSubscription.TopicPartition),
        generation_id=subscribed.generation,
        rack_id=subscribed.rack,
    )
    encoded = codec(ConsumerProtocolSubscription, SUBSCRIPTION_VERSION_MAX).encode(subscription)
    return _VERSION.pack(SUBSCRIPTION_VERSION_MAX) + bytes(encoded)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscribed:
    decoded: ConsumerProtocolSubscription = _decode(ConsumerProtocolSubscription, data, SUBSCRIPTION_VERSION_MAX)
    return Subscribed(
        topics=frozenset(decoded.topics),
        owned=tuple(partitions_of(decoded.owned_partitions)),
        generation=decoded.generation_id,
        rack=decoded.rack_id or None,
        instance_id=instance_id,
        user_data=bytes(decoded.user_data or b""),
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode an assignment in version 1, whose bytes are the same in all versions."""
    topics = by_topic(partitions, ConsumerProtocolAssignment.TopicPartition)
    encoded = codec(ConsumerProtocolAssignment, 1).encode(ConsumerProtocolAssignment(assigned_partitions=topics))
    return _VERSION.pack(1) + bytes(encoded)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Decode an assignment; empty data means that the leader assigned nothing."""
    if not data:
        return frozenset()
    decoded: ConsumerProtocolAssignment = _decode(ConsumerProtocolAssignment, data, ASSIGNMENT_VERSION_MAX)
    return frozenset(partitions_of(decoded.assigned_partitions))


def _decode(kind: Any, data: bytes, version_max: int) -> Any:
    if len(data) < _VERSION.size:
        raise DecodeError(f"{len(data)} bytes are too few for a {kind.__name__}")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise DecodeError(f"there is no version {version} of {kind.__name__}")
    return codec(kind, min(version, version_max)).decode(data, _VERSION.size)


def encode_sticky_data(held: Collection[TopicPartition], generation: int) -> bytes:
    subscribed = StickyData(by_topic(held, StickyData.PreviousTopic), generation)
    return bytes(codec(StickyData, 1).encode(subscribed))


def decode_sticky_data(data: bytes) -> tuple[list[TopicPartition], int]:
    """Decode the user data of the sticky assignor; return nothing if it is malformed, as it only helps to move less."""
    for version in (1, 0) if data else ():
        try:
            decoded = codec(StickyData, version).decode(data)
        except DecodeError:
            continue
        return partitions_of(decoded.previous_assignment), decoded.generation
    return [], NO_GENERATION


def encode_generation(generation: int) -> bytes:
    return _GENERATION.pack(generation)


def decode_generation(data: bytes) -> int:
    return int(_GENERATION.unpack_from(data)[0]) if len(data) >= _GENERATION.size else NO_GENERATION


def by_topic(partitions: Iterable[TopicPartition], kind: Any) -> list[Any]:
    return [kind(topic=topic, partitions=some) for topic, some in indexes_by_topic(sorted(partitions)).items()]


def partitions_of(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partitions]
