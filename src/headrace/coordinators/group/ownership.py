"""The interface to groups of any type, used by offsets, expiry and the APIs that list and delete groups.

A group id has one type at a time. Each type implements the interface for its groups (ClassicState, ConsumerState); `owner_of` finds
the right one. A group that only has offsets, of a consumer that never joined, has no owner and is presented as an empty classic group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.base.ids import Uuid
from headrace.protocol.messages.list_groups import ListGroupsResponse
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import Tx

Listed = ListGroupsResponse.ListedGroup

# Takes topic, topic id (zero if the request has none) and partition; raises KafkaError if the member may not commit it.
PartitionCheck = Callable[[str, Uuid, int], None]


class GroupOwner(Protocol):
    """All groups of one type in a shard.

    Unless noted otherwise, the group must be one of them. Failed checks raise KafkaError.
    """

    def has(self, group_id: str) -> bool:
        """Return whether the group exists in the newest state, committed or not."""

    def group_ids(self) -> Iterable[str]: ...

    def is_empty(self, group_id: str) -> bool: ...

    def is_subscribed(self, group_id: str, topic: str) -> bool: ...

    def check_commit(self, received: CoordinatorRequest, now_ms: int, tx: Tx) -> PartitionCheck | None:
        """Check an OffsetCommitRequest; return the check of each partition, or None if none is needed.

        Extend the session of a classic group's member.
        """

    def check_transactional_commit(self, request: TxnOffsetCommitRequest) -> PartitionCheck | None:
        """Check a TxnOffsetCommitRequest like `check_commit`, but ignore rebalances and extend no session.

        Requests that do not identify a member, as before version 3, are not checked.
        """

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Check that the member may fetch offsets, against the committed state. The group may be unknown."""

    def check_offset_delete(self, group_id: str) -> None: ...

    def check_delete(self, group_id: str) -> None: ...

    def retained_since(self, group_id: str, committed_ms: int) -> int | None:
        """Return when the retention of an offset committed then starts (KIP-211), or None while it cannot expire."""

    def delete(self, group_id: str, tx: Tx) -> None:
        """Emit the tombstones of an empty group. Its offsets are the caller's responsibility."""

    def listed(self) -> list[Listed]: ...


def owner_of(owners: Sequence[GroupOwner], group_id: str) -> GroupOwner | None:
    return next((owner for owner in owners if owner.has(group_id)), None)
