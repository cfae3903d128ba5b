"""The in-sync replicas of a led partition: what the controller has committed, and what this leader has proposed to it.

Theory: a record is committed when every member of the ISR has it, and only members of the ISR are elected. The leader and the
controller may disagree about the ISR while a change is under way, so the leader assumes the larger set. A replica that it proposes
to ADD counts at once, because the controller may elect it before the leader learns that it was accepted. A replica that it
proposes to REMOVE counts until the controller has accepted, because it may be elected until then. Each change is proposed for one
partition epoch, which the controller compares; at most one is under way, and the next partition state from the metadata log ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

from msgspec import Struct

from headrace.base.errors import ErrorCode
from headrace.replication.leader_state import NO_BROKER_EPOCH, Follower

PROPOSAL_PAUSE_MS = 100  # time after a withdrawn proposal before the next one
IN_DOUBT_MS = 30_000  # how long a request without a response may still be carried out

# Returns the epoch of a broker that may join an ISR; None if it is fenced, shutting down or not registered.
EligibleEpoch = Callable[[int], int | None]


class Member(Struct, frozen=True):
    """A proposed member of the ISR. The controller refuses it if the broker has restarted since (KIP-903)."""

    broker_id: int
    broker_epoch: int = NO_BROKER_EPOCH


class Proposal(Struct, frozen=True):
    """A change of the ISR, sent as part of an AlterPartition request; it also reports that the leader has recovered."""

    members: tuple[Member, ...]
    leader_epoch: int
    partition_epoch: int

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(member.broker_id for member in self.members)


class Accepted(Struct, frozen=True):
    """The state of the partition after the controller has accepted a proposal."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    recovering: bool = False


class Reaction(Enum):
    SEND_AGAIN = auto()  # it is unknown whether the change was made, or the controller is not ready
    WITHDRAW = auto()  # the controller has the state that this leader knows, and refuses the change
    AWAIT_METADATA = auto()  # the controller has another state, which the metadata log will bring


# Every other error, and a request without a response, is a reason to send the proposal again.
REACTIONS = {
    ErrorCode.OPERATION_NOT_ATTEMPTED: Reaction.WITHDRAW,
    ErrorCode.INELIGIBLE_REPLICA: Reaction.WITHDRAW,
    ErrorCode.INVALID_UPDATE_VERSION: Reaction.AWAIT_METADATA,
    ErrorCode.FENCED_LEADER_EPOCH: Reaction.AWAIT_METADATA,
    ErrorCode.NEW_LEADER_ELECTED: Reaction.AWAIT_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: Reaction.AWAIT_METADATA,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.AWAIT_METADATA,
    ErrorCode.INVALID_REQUEST: Reaction.AWAIT_METADATA,
}


def reaction_to(code: ErrorCode) -> Reaction:
    return REACTIONS.get(code, Reaction.SEND_AGAIN)


class Isr:
    """The ISR of one partition in one leader epoch."""

    __slots__ = (
        "_in_doubt_until_ms",
        "_node_id",
        "_not_before_ms",
        "leader_epoch",
        "maximal",
        "members",
        "partition_epoch",
        "pending",
        "recovering",
    )

    def __init__(
        self, node_id: int, members: tuple[int, ...], leader_epoch: int, partition_epoch: int, *, recovering: bool
    ) -> None:
        self._node_id = node_id
        self.leader_epoch = leader_epoch
        self.members = members  # as committed by the controller
        self.partition_epoch = partition_epoch
        self.recovering = recovering  # elected uncleanly, which the controller remembers until this leader reports back
        self.pending: Proposal | None = None
        self.maximal: frozenset[int] = frozenset(members)  # the members, and those that the pending proposal adds
        self._not_before_ms = 0
        self._in_doubt_until_ms = 0

    # --- proposing

    def propose(
        self, joining: Iterable[int], lagging: Sequence[int], eligible: EligibleEpoch, now_ms: int
    ) -> Proposal | None:
        """Return a proposal to add `joining` and remove `lagging`, or None if there is nothing to propose now."""
        added = [replica for replica in joining if replica not in self.members]
        removed = [replica for replica in lagging if replica in self.members and replica != self._node_id]
        if self.pending is not None or now_ms < self._not_before_ms:
            return None
        if not added and not removed and not self.recovering:
            return None
        members = [replica for replica in (*self.members, *added) if replica not in removed]
        self.pending = Proposal(
            tuple(Member(replica, _epoch(eligible(replica))) for replica in members),
            self.leader_epoch,
            self.partition_epoch,
        )
        self.maximal = frozenset((*self.members, *added))
        return self.pending

    # --- learning what the controller decided

    def refused(self, proposal: Proposal, code: ErrorCode, now_ms: int) -> bool:
        """React to an error response, or to none, and return whether the proposal must be sent again.

        A proposal is not withdrawn while an earlier request with it is in doubt: the controller may still carry that one out.
        """
        if proposal is not self.pending:
            return False
        reaction = reaction_to(code)
        if reaction is Reaction.WITHDRAW and now_ms >= self._in_doubt_until_ms:
            self._not_before_ms = now_ms + PROPOSAL_PAUSE_MS
            self._settle(self.members)
            return False
        if reaction is Reaction.SEND_AGAIN and code is not ErrorCode.NOT_CONTROLLER:
            self._in_doubt_until_ms = now_ms + IN_DOUBT_MS
        return reaction is not Reaction.AWAIT_METADATA

    def accepted(self, proposal: Proposal, state: Accepted) -> bool:
        """Adopt the state after a proposal, and return whether it is news.

        The metadata log may have brought this state, or a later one, before the response. A response for another leader epoch
        or without this leader is left to the metadata log as well.
        """
        if proposal is not self.pending or state.leader_epoch != self.leader_epoch:
            return False
        if state.partition_epoch < self.partition_epoch or self._node_id not in state.isr:
            return False
        self._adopt(state.isr, state.partition_epoch, recovering=state.recovering)
        return True

    def published(self, members: tuple[int, ...], partition_epoch: int, *, recovering: bool) -> None:
        """Adopt the state from the metadata log if it is newer; that ends the pending proposal."""
        if partition_epoch > self.partition_epoch:
            self._adopt(members, partition_epoch, recovering=recovering)

    def _adopt(self, members: tuple[int, ...], partition_epoch: int, *, recovering: bool) -> None:
        self.partition_epoch, self.recovering = partition_epoch, recovering
        self._settle(members)

    def _settle(self, members: tuple[int, ...]) -> None:
        self.members, self.maximal, self.pending = members, frozenset(members), None
        self._in_doubt_until_ms = 0


def may_join(follower: Follower, eligible_epoch: int | None, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower may join the ISR.

    It must have all committed records, and the whole log of earlier leader epochs: those records may be committed without this
    leader knowing it yet. Its broker must be eligible in the same incarnation that fetched.
    """
    return (
        eligible_epoch is not None
        and follower.broker_epoch in (NO_BROKER_EPOCH, eligible_epoch)
        and follower.log_end >= max(high_watermark, epoch_start)
    )


def _epoch(eligible: int | None) -> int:
    return NO_BROKER_EPOCH if eligible is None else eligible
