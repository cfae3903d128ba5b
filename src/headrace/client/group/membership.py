"""The port between a consumer and its group: what a consumer needs of a member, and what a member reports to it.

A member stays alive by heartbeats from a background task, but hands partitions over only inside `poll`, while the
application is not processing records. So what a callback reports about a partition stays true until the next poll.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol, TypeVar

from headrace.base.ids import TopicPartition

PartitionData = TypeVar("PartitionData")

NO_GENERATION = -1


class Subscription(NamedTuple):
    """Topics by name, or the topics whose whole name a pattern (RE2) matches."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None


class GroupMetadata(NamedTuple):
    """The identity of a committer, also for offsets in a transaction; without a membership, only the group is set."""

    group_id: str
    generation: int = NO_GENERATION  # generation of the group (classic) or epoch of the member (KIP-848)
    member_id: str = ""
    instance_id: str | None = None


class CommittedOffset(NamedTuple):
    """An offset to commit, or one that was committed, with the application's `metadata`."""

    offset: int  # offset of the next record to read
    leader_epoch: int = -1  # leader epoch of the last record read; -1: unknown
    metadata: str = ""


def offsets_by_topic(
    offsets: Mapping[TopicPartition, CommittedOffset], make_partition: Callable[..., PartitionData]
) -> dict[str, list[PartitionData]]:
    """Return the offsets of each topic as data of OffsetCommit or TxnOffsetCommit, which name their fields alike."""
    topics: dict[str, list[PartitionData]] = defaultdict(list)
    for (topic, index), committed in offsets.items():
        topics[topic].append(
            make_partition(
                partition_index=index,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return topics


class RebalanceListener(Protocol):
    """The consumer, as its member sees it.

    The coroutines are awaited inside `Member.poll`: lost or revoked first, then assigned.
    """

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit if automatic commits are on, call the callback, and stop reading; the partitions are still ours."""
        ...

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop reading partitions that another member may own (fenced, session expired); commits are impossible."""
        ...

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Start reading the new partitions; also called, with none, after a rebalance that brought none."""
        ...

    def wake(self) -> None:
        """Interrupt a consumer that waits for records, because `poll` has something to do."""
        ...


class Member(Protocol):
    """A group member: `ClassicMember(cluster, values, listener)` or `ConsumerMember(cluster, values, listener)`.

    The values are those of consumer_options.
    """

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that may be read now."""
        ...

    @property
    def group_metadata(self) -> GroupMetadata: ...

    def subscribe(self, subscription: Subscription) -> None:
        """Change the subscription, with effect from the next `poll`."""
        ...

    async def poll(self, timeout_s: float) -> bool:
        """Join, rejoin and hand over partitions if that is due; return fast, without suspending, if it is not.

        Return False if the timeout passed before the member had a settled assignment; it is safe to call this again.
        max.poll.interval.ms limits the time between calls. Raise KafkaError for errors that a retry does not fix
        (GROUP_AUTHORIZATION_FAILED, FENCED_INSTANCE_ID, …).
        """
        ...

    async def leave(self, timeout_s: float) -> None:
        """Revoke all partitions (or report them as lost), leave the group unless static, and end all tasks.

        An unreachable coordinator is not an error.
        """
        ...


class GroupOffsets(Protocol):
    """The committed offsets of a group, with or without a membership: `Commits(cluster, values)` of commits.py."""

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMetadata, timeout_s: float
    ) -> None:
        """Commit all offsets or raise KafkaError; retriable errors are retried within the timeout."""
        ...

    async def committed(
        self, partitions: Collection[TopicPartition], group: GroupMetadata, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets without partitions that have none; wait for pending ones (require_stable)."""
        ...
