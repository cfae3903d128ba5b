"""Placement of the replicas of new partitions: evenly over racks first, then over the brokers of each rack.

The racks are taken in turn, starting one later for each partition, and so are the brokers within a rack. When as many partitions are
placed as there are active brokers, each has led about once; then racks and brokers are shuffled, so that the partitions of a broker that
fails do not all find their next leader on the same one. Inactive brokers only get replicas if a rack has no active ones left, and are
never the first replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from headrace.base.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")


class Candidate(NamedTuple):
    """A broker that may get replicas."""

    id: int
    rack: str | None = None
    is_active: bool = True


class _Rack:
    def __init__(self, brokers: Sequence[Candidate]) -> None:
        self.active = sorted(broker.id for broker in brokers if broker.is_active)
        self.inactive = sorted(broker.id for broker in brokers if not broker.is_active)

    def shuffle(self, random: Random) -> None:
        random.shuffle(self.active)
        random.shuffle(self.inactive)

    def in_turn(self, turn: int) -> list[int]:
        """Return the brokers in the order for a partition, active ones first."""
        return [*_rotated(self.active, turn), *_rotated(self.inactive, turn)]


def assign_replicas(
    partitions: int, replication_factor: int, brokers: Sequence[Candidate], random: Random
) -> list[list[int]]:
    """Return the replicas of each partition, the preferred leader first. Raise KafkaError if there are too few brokers."""
    _check_enough(replication_factor, brokers)
    by_rack: dict[str, list[Candidate]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack or "", []).append(broker)
    racks = [_Rack(by_rack[name]) for name in sorted(by_rack)]
    cycle = sum(broker.is_active for broker in brokers)
    assignments = []
    for partition in range(partitions):
        step = partition % cycle
        if step == 0:
            random.shuffle(racks)
            for rack in racks:
                rack.shuffle(random)
        assignments.append(_place(_rotated(racks, step), step // len(racks), replication_factor))
    return assignments


def _place(racks: Sequence[_Rack], turn: int, replication_factor: int) -> list[int]:
    """Return the replicas of one partition, one from each rack in turn."""
    first = next(position for position, rack in enumerate(racks) if rack.active)
    ordered = [racks[first], *racks[:first], *racks[first + 1 :]]
    left = [rack.in_turn(turn + distance) for distance, rack in enumerate(ordered)]
    replicas: list[int] = []
    while len(replicas) < replication_factor:
        for brokers in left:
            if brokers and len(replicas) < replication_factor:
                replicas.append(brokers.pop(0))
    return replicas


def _rotated(items: Sequence[T], by: int) -> list[T]:
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]


def _check_enough(replication_factor: int, brokers: Sequence[Candidate]) -> None:
    unable = f"Unable to replicate the partition {replication_factor} time(s):"
    if not any(broker.is_active for broker in brokers):
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{unable} All brokers are currently fenced.")
    if not 1 <= replication_factor <= len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{unable} The target replication factor of {replication_factor} cannot be reached because only"
            f" {len(brokers)} broker(s) are registered or some brokers have all their log directories cordoned.",
        )
