"""What is asked of a group whatever its type: by offsets, by expiry, by the APIs that list and delete groups.

A group id is of one type at a time. Each type of group answers for its own (ClassicState, ConsumerState); `owner_of` finds the one.
A group that only has offsets, of a consumer that never joined, has no owner: it is an empty classic group to whoever looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.base.ids import Uuid
from headrace.protocol.messages.list_groups import ListGroupsResponse
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from headrace.coordinators.group.asked import Asked
    from headrace.coordinators.group.shard import Tx

Listed = ListGroupsResponse.ListedGroup

# Topic, its id (zero where the request has none) and partition; KafkaError if this member may not commit this one.
PartitionCheck = Callable[[str, Uuid, int], None]


class GroupOwner(Protocol):
    """All of one type of group in a shard. Names are of groups that it has, unless said otherwise; errors are KafkaErrors."""

    def has(self, group_id: str) -> bool:
        """In the newest state."""

    def group_ids(self) -> Iterable[str]: ...

    def is_empty(self, group_id: str) -> bool: ...

    def is_subscribed(self, group_id: str, topic: str) -> bool: ...

    def check_commit(self, asked: Asked, now_ms: int, tx: Tx) -> PartitionCheck | None:
        """Of an OffsetCommitRequest. None if there is nothing to check of each partition; a member's session is prolonged here."""

    def check_transactional_commit(self, request: TxnOffsetCommitRequest) -> PartitionCheck | None:
        """Like `check_commit`, but a rebalance does not matter, nobody's session is prolonged, and whoever does not say who it is, as
        before version 3, is not asked."""

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Against what is committed; the group may be one it does not have."""

    def check_offset_delete(self, group_id: str) -> None: ...

    def check_delete(self, group_id: str) -> None: ...

    def retained_since(self, group_id: str, committed_ms: int) -> int | None:
        """From when the retention of an offset committed at that time is counted (KIP-211); None while it cannot expire."""

    def forget(self, group_id: str, tx: Tx) -> None:
        """Emits the tombstones of an empty group; of its offsets others take care."""

    def listed(self) -> list[Listed]: ...


def owner_of(owners: Sequence[GroupOwner], group_id: str) -> GroupOwner | None:
    return next((owner for owner in owners if owner.has(group_id)), None)
