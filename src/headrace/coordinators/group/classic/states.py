"""The states of a classic group, as one table.

When a member joins, leaves, changes its protocols or does not sync in time, the group prepares a rebalance: it waits until every member
has rejoined or the rebalance timeout has passed. Then a new generation begins. The JoinGroup responses contain it, and the leader's also
lists the members. The group waits for the leader's assignment and is stable from then on, until the next change. A group whose last
member has left is empty and keeps its generation.

JoinGroup requests are parked while the group is preparing, SyncGroup requests while it is completing. Members notice a rebalance in
the responses to their heartbeats. A dead group does not exist, so it has no state here.
"""

from __future__ import annotations

from enum import Enum

from headrace.base.errors import ErrorCode


class State(Enum):
    """Group states, with the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


DEAD = "Dead"  # the state that DescribeGroups shows for a group that does not exist


class Event(Enum):
    """Events that change a group's state; the values describe when they occur."""

    REBALANCE = "a member joined, left, changed its protocols, or did not sync in time"
    ALL_JOINED = "every required member has joined"
    ALL_LEFT = "the join phase ended without a member"
    ASSIGNED = "the leader's assignment is written"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.EMPTY, Event.REBALANCE): State.PREPARING,
    (State.COMPLETING, Event.REBALANCE): State.PREPARING,
    (State.STABLE, Event.REBALANCE): State.PREPARING,
    (State.PREPARING, Event.ALL_JOINED): State.COMPLETING,
    (State.PREPARING, Event.ALL_LEFT): State.EMPTY,
    (State.COMPLETING, Event.ASSIGNED): State.STABLE,
}

# Errors for members of the current generation; in all other states the request is served.
ON_SYNC = {State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID, State.PREPARING: ErrorCode.REBALANCE_IN_PROGRESS}
ON_HEARTBEAT = {State.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID, State.PREPARING: ErrorCode.REBALANCE_IN_PROGRESS}
ON_COMMIT = {State.COMPLETING: ErrorCode.REBALANCE_IN_PROGRESS}
