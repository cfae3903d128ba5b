"""The reconciliation of a member's partitions with its target.

The target is the member's assignment from the last run of the assignor; members reach their targets independently. Three rules make
that safe:

  1. Revocation precedes assignment: a member that owns partitions outside its target keeps its epoch, receives a smaller assignment, and
     stays UNREVOKED until a heartbeat lists its partitions without those to revoke. Until then no other member is assigned them.
  2. New partitions are assigned together with the new epoch, and only those that no other member owns (assigned or still revoking).
  3. A member whose target has partitions that another member owns advances to the new epoch, but is UNRELEASED and checks again at every
     heartbeat. When none is missing, it is STABLE until the next epoch.

TRANSITIONS is the complete table: a member's state and a finding give the next state, and whether the member advances to the target's
epoch. A member that changes its subscription gives up topics that it is no longer subscribed to at once, whatever its target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors.spec import Assignment
from headrace.coordinators.group.consumer.members import NOTHING, Member, MemberState, Owned

# Topic → partitions that a member lists in a heartbeat.
ReportedPartitions = Mapping[Uuid, Mapping[int, None]]


class Finding(Enum):
    """The result of comparing a member with its target; the values describe it."""

    UP_TO_DATE = "stable at the epoch of the target"
    UNCONFIRMED = "has not confirmed that it revoked its partitions"
    MUST_REVOKE = "owns partitions outside its target"
    MUST_WAIT = "another member still owns partitions of its target"
    COMPLETE = "owns its target"


class Step(NamedTuple):
    """An entry of TRANSITIONS."""

    state: MemberState
    advances: bool  # whether the member advances to the target's epoch


_STABLE, _UNREVOKED, _UNRELEASED, _UNKNOWN = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
    MemberState.UNKNOWN,
)

TRANSITIONS: Mapping[tuple[MemberState, Finding], Step] = {
    (_STABLE, Finding.UP_TO_DATE): Step(_STABLE, False),
    (_STABLE, Finding.MUST_REVOKE): Step(_UNREVOKED, False),
    (_STABLE, Finding.MUST_WAIT): Step(_UNRELEASED, True),
    (_STABLE, Finding.COMPLETE): Step(_STABLE, True),
    (_UNREVOKED, Finding.UNCONFIRMED): Step(_UNREVOKED, False),
    (_UNREVOKED, Finding.MUST_REVOKE): Step(_UNREVOKED, False),
    (_UNREVOKED, Finding.MUST_WAIT): Step(_UNRELEASED, True),
    (_UNREVOKED, Finding.COMPLETE): Step(_STABLE, True),
    (_UNRELEASED, Finding.MUST_REVOKE): Step(_UNREVOKED, False),
    (_UNRELEASED, Finding.MUST_WAIT): Step(_UNRELEASED, True),
    (_UNRELEASED, Finding.COMPLETE): Step(_STABLE, True),
    # A state written by a newer version; such a member rejoins without partitions, so there is nothing to revoke.
    (_UNKNOWN, Finding.MUST_WAIT): Step(_UNRELEASED, True),
    (_UNKNOWN, Finding.COMPLETE): Step(_STABLE, True),
}


class Reconciliation:
    """One reconciliation step of one member.

    `taken` returns whether another member owns a partition. `reported` has the partitions that this member lists as its own; it is None
    if the request does not list them.
    """

    def __init__(
        self,
        member: Member,
        target: Assignment,
        target_epoch: int,
        subscribed: Callable[[Uuid], bool],
        taken: Callable[[Uuid, int], bool],
        reported: ReportedPartitions | None,
    ) -> None:
        self._member = member
        self._target = target
        self._epoch = target_epoch
        self._subscribed = subscribed
        self._taken = taken
        self._reported = reported

    def next(self, subscription_changed: bool) -> Member:
        """Return the member after this step; the same one if nothing changes.

        Raise KafkaError with FENCED_MEMBER_EPOCH if its state is unknown, unless its request lists no partitions.
        """
        member = self._member
        if member.state is _UNKNOWN and self._reported != {}:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The member is in a state that this coordinator does not know. The member must abandon all its partitions and rejoin.",
            )
        if member.is_reconciled(self._epoch):
            finding, kept, revoking = Finding.UP_TO_DATE, member.assigned, member.revoking
        elif member.state is _UNREVOKED and self._holds(member.revoking):
            finding, kept, revoking = Finding.UNCONFIRMED, member.assigned, member.revoking
        else:
            finding, kept, revoking = self._compare()
        step = TRANSITIONS[(member.state, finding)]
        if finding in (Finding.UP_TO_DATE, Finding.UNCONFIRMED):
            return self._without_unsubscribed() if subscription_changed else member
        return replace(
            member,
            state=step.state,
            epoch=self._epoch if step.advances else member.epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=revoking,
        )

    def _holds(self, partitions: Owned) -> bool:
        """Return whether the member may still use one of these partitions; assume so if its own are not listed."""
        reported = self._reported
        if reported is None:
            return True
        return any(
            partition in reported[topic]
            for topic, indexes in partitions.items()
            if topic in reported
            for partition in indexes
        )

    def _compare(self) -> tuple[Finding, Owned, Owned]:
        """Return the finding, and the partitions that are now assigned and to be revoked."""
        member = self._member
        kept: dict[Uuid, dict[int, int]] = {}
        surplus: dict[Uuid, dict[int, int]] = {}
        free: dict[Uuid, list[int]] = {}
        waiting = False
        for topic in sorted(self._target.keys() | member.assigned.keys()):
            target = dict.fromkeys(self._target.get(topic, ()) if self._subscribed(topic) else ())
            owned = member.assigned.get(topic, {})
            if retained := {partition: epoch for partition, epoch in owned.items() if partition in target}:
                kept[topic] = retained
            if surplus_here := {partition: epoch for partition, epoch in owned.items() if partition not in target}:
                surplus[topic] = surplus_here
            missing = [partition for partition in target if partition not in owned]
            if available := [partition for partition in missing if not self._taken(topic, partition)]:
                free[topic] = available
            waiting |= len(available) < len(missing)
        if surplus and self._holds(surplus):
            return Finding.MUST_REVOKE, kept, surplus
        for topic, partitions in free.items():
            kept.setdefault(topic, {}).update(dict.fromkeys(partitions, self._epoch))
        return Finding.MUST_WAIT if waiting else Finding.COMPLETE, kept, NOTHING

    def _without_unsubscribed(self) -> Member:
        """Return the member without topics that it is no longer subscribed to, before there is a new target.

        It is UNREVOKED while it may still use their partitions. Its epoch stays the same.
        """
        member = self._member
        unsubscribed = [topic for topic in member.assigned if not self._subscribed(topic)]
        if not unsubscribed:
            return member
        kept = {topic: owned for topic, owned in member.assigned.items() if topic not in unsubscribed}
        revoking = {topic: dict(owned) for topic, owned in member.revoking.items()}
        for topic in unsubscribed:
            revoking.setdefault(topic, {}).update(member.assigned[topic])
        if self._holds(revoking):
            return replace(member, state=_UNREVOKED, previous_epoch=member.epoch, assigned=kept, revoking=revoking)
        return replace(member, previous_epoch=member.epoch, assigned=kept)
