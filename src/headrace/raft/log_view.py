"""What raft reads of the metadata log, and the two rules by which logs are compared (KIP-595).

The log belongs to the shell. A replica that fetches names the end of its log and the epoch of its last record. If the leader's log does
not contain that point, the leader returns the end of the largest epoch that both may share, and the replica truncates to it and tries
again; each round drops at least one epoch of the replica that the leader does not have.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class LogPoint(NamedTuple):
    """An end offset and the epoch of the record before it. The tuple order of (epoch, offset) compares logs."""

    epoch: int
    offset: int


class LogView(Protocol):
    """The metadata log as raft sees it: reads from memory, without I/O."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Return the epoch of the last record, or of the snapshot that the log begins after; 0 if there is neither."""
        ...

    @property
    def snapshot(self) -> LogPoint | None:
        """Return the newest snapshot."""
        ...

    def epoch_end(self, epoch: int) -> LogPoint:
        """Return the largest epoch of the log that is at most `epoch`, with its end offset; (0, start) if there is none."""
        ...


class Divergence(NamedTuple):
    """The replica's log is not a prefix of the leader's: it must truncate to this point or below."""

    point: LogPoint


class NeedsSnapshot(NamedTuple):
    """The leader no longer has what follows the replica's log: the replica must fetch this snapshot."""

    point: LogPoint


def last_point(log: LogView) -> LogPoint:
    return LogPoint(log.last_epoch, log.end_offset)


def compare_with_leader(log: LogView, fetch_offset: int, last_fetched_epoch: int) -> Divergence | NeedsSnapshot | None:
    """Return what keeps a replica that ends at this point from appending the leader's records; None if nothing does."""
    if fetch_offset == 0 and last_fetched_epoch == 0 and log.start_offset == 0:
        return None
    snapshot = log.snapshot
    if snapshot is not None:
        if fetch_offset < log.start_offset or last_fetched_epoch < _first_epoch(log, snapshot):
            return NeedsSnapshot(snapshot)
        if LogPoint(last_fetched_epoch, fetch_offset) == snapshot:
            return None
    shared = log.epoch_end(last_fetched_epoch)
    if shared.epoch == last_fetched_epoch and fetch_offset <= shared.offset:
        return None
    return Divergence(shared)


def _first_epoch(log: LogView, snapshot: LogPoint) -> int:
    """Return the epoch of the snapshot if the log begins right after it, else 0: then the log itself can tell."""
    return snapshot.epoch if log.start_offset == snapshot.offset else 0


def truncation_offset(log: LogView, diverging: LogPoint) -> int:
    """Return where a replica's log may first differ from the leader's, given the leader's divergence point."""
    own = log.epoch_end(diverging.epoch)
    return min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
