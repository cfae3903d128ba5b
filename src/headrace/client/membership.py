"""The port between a consumer and its group: what a consumer needs of a member, and what a member tells its consumer.

A member keeps itself alive by heartbeats of its own (a background task), but hands partitions over only inside `poll`, that is while the
application is not working on records: so whatever a callback says about a partition is true until the next poll.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from headrace.base.ids import TopicPartition

NO_GENERATION = -1


class Subscription(NamedTuple):
    """Topics by name, or those that a pattern (RE2) matches as a whole."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None


class GroupMetadata(NamedTuple):
    """Who commits: all a coordinator wants to know, also for offsets in a transaction. Without a membership only the group is named."""

    group_id: str
    generation: int = NO_GENERATION  # of the group (classic) or of the member (its epoch, KIP-848)
    member_id: str = ""
    instance_id: str | None = None


class CommittedOffset(NamedTuple):
    offset: int  # of the next record to read
    leader_epoch: int = -1  # of the last one that was read; -1 unknown
    metadata: str = ""


class RebalanceListener(Protocol):
    """The consumer, as its member sees it. The coroutines are awaited inside `Member.poll`: lost or revoked first, then assigned."""

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """They are still ours: the consumer commits (if it does so by itself), asks the application, and stops reading them."""
        ...

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """They are somebody else's already (fenced, session over): nothing can be committed any more."""
        ...

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """What is new, and only that; called (with nothing) also when a rebalance brought nothing new."""
        ...

    def wake(self) -> None:
        """`poll` has something to do: a consumer that waits for records stops waiting."""
        ...


class Member(Protocol):
    """Made by `ClassicMember(cluster, values, listener)` or `ConsumerMember(cluster, values, listener)`; values are consumer_options'."""

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What may be read now."""
        ...

    @property
    def group_metadata(self) -> GroupMetadata: ...

    def subscribe(self, subscription: Subscription) -> None:
        """Takes effect with the next `poll`."""
        ...

    async def poll(self, timeout_s: float) -> bool:
        """Joins, rejoins and hands partitions over as far as is due; quick and without a suspension when nothing is due.

        False if the time was up before the member had a settled assignment (ask again: nothing is lost by it). Also the sign of life for
        max.poll.interval.ms. KafkaError for what another try does not mend (GROUP_AUTHORIZATION_FAILED, FENCED_INSTANCE_ID, …).
        """
        ...

    async def leave(self, timeout_s: float) -> None:
        """Revokes all (`revoked`, or `lost` if it is), leaves unless static, ends its tasks; never raises for a lost coordinator."""
        ...


class GroupOffsets(Protocol):
    """Offsets of a group, with or without a membership: `Commits(cluster, values)` of commits.py."""

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMetadata, timeout_s: float
    ) -> None:
        """All or KafkaError; retries what may be retried within the time."""
        ...

    async def committed(
        self, partitions: Collection[TopicPartition], group: GroupMetadata, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset]:
        """Without those for which nothing is committed; waits for pending transactional offsets (require_stable)."""
        ...
