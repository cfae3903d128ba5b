"""Chooses partitions: by the hash of the key as in Java's client, else one partition until a batch is full.

The sticky choice (KIP-794) fills whole batches, and with `adaptive` prefers partitions with short queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

# From topic, key, value and partition count to a partition, or None for the sticky one.
Partitioner = Callable[[str, bytes | None, bytes | None, int], int | None]


class RoundRobin:
    """Sends each record to the next partition, regardless of its key."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return self.turns(topic, partitions, 1)

    def turns(self, topic: str, partitions: int, count: int) -> int:
        """Take `count` turns at once and return the partition of the first."""
        turn = self._turns.get(topic, 0) % partitions
        self._turns[topic] = turn + count
        return turn


class Sticky:
    """The sticky partitioner; `loads` returns the queue length of each partition, -1 for one without a leader."""

    def __init__(
        self, random: Random, *, batch_bytes: int, adaptive: bool, loads: Callable[[str, int], Sequence[int]]
    ) -> None:
        self._random = random
        self._batch_bytes = batch_bytes
        self._adaptive = adaptive
        self._loads = loads
        self._chosen: dict[str, tuple[int, int]] = {}  # partition, and bytes added to it since it was chosen

    def partition(self, topic: str, partitions: int) -> int:
        chosen = self._chosen.get(topic)
        if chosen is None or chosen[0] >= partitions:
            chosen = self._choose(topic, partitions)
        return chosen[0]

    def add(self, topic: str, partition: int, size: int, partitions: int, *, is_full: bool) -> None:
        """Count the bytes added to the sticky partition, and choose another one after a batch.

        `is_full` means that the next record begins a new batch, a good moment to change; after the size of two batches
        it changes in any case.
        """
        chosen = self._chosen.get(topic)
        if chosen is None or chosen[0] != partition:
            return
        produced = chosen[1] + size
        if produced >= self._batch_bytes and (is_full or produced >= 2 * self._batch_bytes):
            self._choose(topic, partitions)
        else:
            self._chosen[topic] = partition, produced

    def _choose(self, topic: str, partitions: int) -> tuple[int, int]:
        loads = self._loads(topic, partitions)
        alive = [index for index in range(partitions) if loads[index] >= 0] or list(range(partitions))
        if self._adaptive and len(alive) > 1:
            most = max(loads[index] for index in alive) + 1
            totals = list(accumulate(most - loads[index] for index in alive))
            choice = alive[_first_above(totals, self._random.randrange(totals[-1]))]
        else:
            choice = alive[self._random.randrange(len(alive))]
        self._chosen[topic] = choice, 0
        return choice, 0


def _first_above(totals: list[int], value: int) -> int:
    return next(index for index, total in enumerate(totals) if total > value)
