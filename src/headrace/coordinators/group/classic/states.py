"""The states of a classic group, as one table.

A group goes round in generations. Somebody joins, leaves, or wants something else: the group prepares, and waits until every member
has joined again or the rebalance timeout has passed. Then a generation begins: members are told of it, the leader among them of the
others too, and the group waits for the leader's assignment. With that it is stable until the next change. A group whose last
member has left is empty, and keeps its generation.

Joins are parked while the group prepares, syncs while it completes; nobody ever holds an assignment of a generation that is over
without being told: heartbeats say so. A dead group is in no state: it is not there.
"""

from __future__ import annotations

from enum import Enum

from headrace.base.errors import ErrorCode


class State(Enum):
    """With the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


DEAD = "Dead"  # what DescribeGroups calls a group that is not there


class Event(Enum):
    REBALANCE = "a member came, went, changed its mind, or did not sync in time"
    ALL_JOINED = "every member that counts has joined"
    ALL_GONE = "the join phase ended without a member"
    ASSIGNED = "the leader's assignment is written"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.EMPTY, Event.REBALANCE): State.PREPARING,
    (State.COMPLETING, Event.REBALANCE): State.PREPARING,
    (State.STABLE, Event.REBALANCE): State.PREPARING,
    (State.PREPARING, Event.ALL_JOINED): State.COMPLETING,
    (State.PREPARING, Event.ALL_GONE): State.EMPTY,
    (State.COMPLETING, Event.ASSIGNED): State.STABLE,
}

# What a member of the current generation is told, where it is not simply served.
ON_SYNC = {State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID, State.PREPARING: ErrorCode.REBALANCE_IN_PROGRESS}
ON_HEARTBEAT = {State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID, State.PREPARING: ErrorCode.REBALANCE_IN_PROGRESS}
ON_COMMIT = {State.COMPLETING: ErrorCode.REBALANCE_IN_PROGRESS}
