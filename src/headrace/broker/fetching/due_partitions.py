"""The partitions of a follower's fetch session that its leader has to look at: those that a request names, and those with news.

A broker may follow thousands of partitions of another one, of which few change between two fetches. A partition is *quiet* while its
leader has nothing for the follower: the follower is in sync, has the whole log and was sent the high watermark. Quiet partitions
cost nothing until they change. A partition that was sent records stays due: either the next request names it with the offset
behind them, or the follower could not use them and needs them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from headrace.replication.partition import Partition

Key = tuple[str | bytes, int]  # topic name up to v12 or topic id from v13 on, and partition index

EXPECT_MS = 1000  # how long a follower may take to get the metadata that its leader has


class _Quiet(NamedTuple):
    """A partition that is watched, and the log start that the follower was sent."""

    partition: Partition
    log_start: int
    on_append: Callable[[], None]
    on_moved: Callable[[], None]


class DuePartitions:
    """The due partitions in the order in which to serve them. Each other partition of the session is watched.

    If only the high watermark of a partition has moved, the partition is due, and still watched for records.
    """

    __slots__ = (
        "_due",
        "_expected",
        "_expected_until_ms",
        "_quiet",
        "_requested_ms",
        "on_news",
        "on_small_news",
        "replica",
    )

    def __init__(self, replica: int, keys: Iterable[Key], now_ms: int) -> None:
        self.replica = replica
        self._due: dict[Key, None] = dict.fromkeys(keys)
        self._quiet: dict[Key, _Quiet] = {}
        self._requested_ms = now_ms  # time of the last request
        self.on_news: Callable[[], None] | None = None  # wakes the request that is parked
        self.on_small_news: Callable[[], None] | None = None  # shortens its wait
        self._expected: set[Key] = set()  # partitions that the follower will name when it has their metadata
        self._expected_until_ms = 0

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._due)

    def requested(self, now_ms: int) -> None:
        """Record a request: the follower still has the whole log of each quiet partition."""
        self._requested_ms = now_ms

    def expect(self, keys: Iterable[Key]) -> None:
        """Let no request wait for long until it names these partitions: a parked one would keep the follower from doing so."""
        self._expected.update(keys)
        self._expected_until_ms = self._requested_ms + EXPECT_MS
        if self.on_news is not None:
            self.on_news()

    @property
    def expects_more(self) -> bool:
        if self._expected and self._requested_ms > self._expected_until_ms:
            self._expected.clear()  # another session may have named them
        return bool(self._expected)

    def add(self, key: Key) -> None:
        """Look at a partition because a request names it."""
        self._unwatch(key)
        self._expected.discard(key)
        self._due[key] = None

    def forget(self, key: Key) -> None:
        self._unwatch(key)
        self._due.pop(key, None)

    def served(self, key: Key) -> None:
        """Serve a partition last next time, so that a busy one starves no other."""
        if key in self._due:
            del self._due[key]
            self._due[key] = None

    def settle(self, key: Key, partition: Partition) -> None:
        """Look at a partition again only when it changes."""
        if key in self._due:
            del self._due[key]
            self._unwatch(key)
            quiet = _Quiet(partition, partition.log.log_start, partial(self._changed, key), partial(self._moved, key))
            self._quiet[key] = quiet
            partition.watch_appends(quiet.on_append)
            partition.watch(quiet.on_moved)

    def _changed(self, key: Key) -> None:
        """React to an append, another role or the end of a quiet partition."""
        partition = self._quiet[key].partition
        self._unwatch(key)
        if partition.followers is not None:
            partition.followers.was_caught_up(self.replica, self._requested_ms)
        self._due[key] = None
        if self.on_news is not None:
            self.on_news()

    def _moved(self, key: Key) -> None:
        """React to a new high watermark or log start: the first can wait for the next records, which follow soon under load."""
        quiet = self._quiet.get(key)
        if quiet is None:
            return  # the same event was reported as another change
        if quiet.partition.log.log_start != quiet.log_start:
            self._changed(key)
            return
        self._due[key] = None
        if self.on_small_news is not None:
            self.on_small_news()

    def _unwatch(self, key: Key) -> None:
        quiet = self._quiet.pop(key, None)
        if quiet is not None:
            quiet.partition.unwatch(quiet.on_append)
            quiet.partition.unwatch(quiet.on_moved)

    def close(self) -> None:
        for key in list(self._quiet):
            self._unwatch(key)
