"""The start offset of each leader epoch, which replicas compare to find where their logs diverge (KIP-101, KIP-279).

The cache is written to `leader-epoch-checkpoint` lazily: it must be on disk BEFORE the recovery point passes an epoch's first
batch. Until then recovery finds the epoch in the batches themselves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class LeaderEpochs:
    """A list of epochs and start offsets, both ascending."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)
        self.dirty = False  # whether the file is out of date

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def entries(self) -> list[EpochStart]:
        return [EpochStart(*pair) for pair in zip(self._epochs, self._starts, strict=True)]

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`, dropping entries that contradict it.

        A latest epoch that began at or before `start_offset` keeps its start.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} cannot begin at offset {start_offset}")
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.dirty = True

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the largest known epoch up to `epoch` and its end: the start of the next epoch, or the log end."""
        if epoch == UNDEFINED_EPOCH:
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self.latest:
            return EpochEnd(epoch, log_end)
        after = bisect_right(self._epochs, epoch)
        if after == len(self._epochs):
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        # An epoch older than all known ones has no data any more; the replica may continue at our first epoch.
        floor = self._epochs[after - 1] if after else epoch
        return EpochEnd(floor, self._starts[after])

    def epoch_for(self, offset: int) -> int:
        slot = bisect_right(self._starts, offset) - 1
        return self._epochs[slot] if slot >= 0 else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at or above `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:]
            del self._starts[keep:]
            self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end at or below `start_offset`; the one that contains it now begins there."""
        holder = bisect_right(self._starts, start_offset) - 1
        if holder < 0 or (holder == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:holder]
        del self._starts[:holder]
        self._starts[0] = start_offset
        self.dirty = True

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.dirty = True
