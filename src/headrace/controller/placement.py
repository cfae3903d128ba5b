"""Placement of the replicas of new partitions: round-robin over the active brokers from a random start, with a shift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random


def assign_replicas(partitions: int, replication_factor: int, brokers: list[int], random: Random) -> list[list[int]]:
    """Return the replicas of each partition, the preferred leader first, with leaders spread evenly."""
    if replication_factor < 1 or replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered or some brokers "
            "have all their log directories cordoned.",
        )
    start = random.randrange(len(brokers))
    shift = random.randrange(len(brokers))
    assignments = []
    for partition in range(partitions):
        if partition and partition % len(brokers) == 0:
            shift += 1
        first = (start + partition) % len(brokers)
        others = [
            brokers[(first + 1 + (shift + k) % (len(brokers) - 1)) % len(brokers)]
            for k in range(replication_factor - 1)
        ]
        assignments.append([brokers[first], *others])
    return assignments
