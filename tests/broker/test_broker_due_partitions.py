"""Which partitions of a follower's session the leader looks at, and how urgently it tells a parked request about news."""

from __future__ import annotations

from random import Random

from testkit.simulator.loop import SimulatedLoop
from tests.replication.replication_samples import NODE, NOW_MS, append, make_files, make_partition

from headrace.broker.fetching.due_partitions import DuePartitions, Key
from headrace.metadata.image import Partition as PartitionState
from headrace.replication.partition import FollowerFetch, Partition

FOLLOWER, OTHER = 2, 3
STATE = PartitionState((NODE, FOLLOWER, OTHER), (NODE, FOLLOWER, OTHER), NODE, 1, 1)
KEY: Key = (b"t" * 16, 0)


class Session:
    """A follower's session over one led partition, in which the follower has the whole log, and a parked request."""

    def __init__(self) -> None:
        self.partition: Partition = make_partition(make_files(), SimulatedLoop(Random(1)))
        self.partition.lead(STATE, NOW_MS)
        self.news: list[str] = []
        self.due = DuePartitions(FOLLOWER, [KEY], NOW_MS)
        self.fetched(FOLLOWER, 0)
        self.fetched(OTHER, 0)
        self.due.settle(KEY, self.partition)
        self.due.on_news = lambda: self.news.append("now")
        self.due.on_small_news = lambda: self.news.append("soon")

    def fetched(self, replica: int, offset: int) -> None:
        fetch = FollowerFetch(replica, 5, offset, 0, -1)
        self.partition.plan_replica_read(fetch, 1000, min_one=True)
        self.partition.record_fetch(fetch, NOW_MS)


def test_a_quiet_partition_is_due_at_once_when_records_are_appended() -> None:
    session = Session()
    assert not len(session.due)
    append(session.partition)
    assert list(session.due) == [KEY] and session.news == ["now"]
    append(session.partition)
    assert session.news == ["now"]  # it is watched again only when it is quiet again


def test_a_new_high_watermark_is_small_news_and_the_next_records_are_still_noticed() -> None:
    session = Session()
    append(session.partition, 3)
    session.fetched(FOLLOWER, 3)
    session.due.settle(KEY, session.partition)
    session.news.clear()
    session.fetched(OTHER, 3)
    assert session.partition.high_watermark == 3
    assert list(session.due) == [KEY] and session.news == ["soon"]
    append(session.partition)
    assert session.news == ["soon", "now"]


def test_a_new_log_start_is_urgent() -> None:
    session = Session()
    append(session.partition, 3)
    session.fetched(FOLLOWER, 3)
    session.fetched(OTHER, 3)
    session.due.settle(KEY, session.partition)
    session.news.clear()
    session.partition.delete_records(2, NOW_MS)
    assert list(session.due) == [KEY] and session.news == ["now"]


def test_a_partition_that_is_no_longer_led_is_urgent_and_reported_once() -> None:
    session = Session()
    session.partition.follow(PartitionState((NODE, FOLLOWER, OTHER), (NODE, FOLLOWER), FOLLOWER, 2, 2))
    assert list(session.due) == [KEY] and session.news.count("now") == 1


def test_a_forgotten_or_closed_session_watches_nothing() -> None:
    session = Session()
    session.due.forget(KEY)
    append(session.partition)
    assert not len(session.due) and session.news == []
    other = Session()
    other.due.close()
    append(other.partition)
    assert not len(other.due) and other.news == []
