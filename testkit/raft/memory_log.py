"""A metadata log in memory, with a snapshot and a durable part."""

from __future__ import annotations

from typing import NamedTuple

from headrace.raft.log_view import LogPoint
from headrace.raft.voters import VoterSet


class Entry(NamedTuple):
    """A record. Values are unique, so that two logs with equal entries hold the same records."""

    epoch: int
    value: int
    voters: VoterSet | None = None


class Snapshot(NamedTuple):
    point: LogPoint
    voters: VoterSet | None
    voters_offset: int


class MemoryLog:
    """A LogView for tests. `crash` drops what is not durable."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []  # from `start_offset` on
        self.start_offset = 0
        self.durable_end = 0
        self.installed: Snapshot | None = None

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return 0 if self.installed is None else self.installed.point.epoch

    @property
    def snapshot(self) -> LogPoint | None:
        return None if self.installed is None else self.installed.point

    def epoch_end(self, epoch: int) -> LogPoint:
        for offset in range(self.end_offset - 1, self.start_offset - 1, -1):
            found = self.entries[offset - self.start_offset].epoch
            if found <= epoch:
                return LogPoint(found, offset + 1)
        if self.installed is not None and self.installed.point.epoch <= epoch:
            return self.installed.point
        return LogPoint(0, self.start_offset)

    def entry(self, offset: int) -> Entry:
        return self.entries[offset - self.start_offset]

    def append(self, entry: Entry) -> int:
        self.entries.append(entry)
        return self.end_offset

    def truncate(self, end_offset: int) -> None:
        del self.entries[max(0, end_offset - self.start_offset) :]
        self.durable_end = min(self.durable_end, end_offset)

    def sync(self, end_offset: int) -> None:
        self.durable_end = max(self.durable_end, min(end_offset, self.end_offset))

    def crash(self) -> None:
        self.truncate(self.durable_end)

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the log up to the snapshot's end by it; a replica that is behind it gets all of it."""
        end = snapshot.point.offset
        keep = max(0, end - self.start_offset)
        self.entries = self.entries[keep:] if end <= self.end_offset else []
        self.start_offset = end
        self.installed = snapshot
        self.durable_end = max(self.durable_end, end)

    def replace_by(self, snapshot: Snapshot) -> None:
        """Install a snapshot of the leader: nothing of the log is left."""
        self.entries = []
        self.start_offset = self.durable_end = snapshot.point.offset
        self.installed = snapshot
