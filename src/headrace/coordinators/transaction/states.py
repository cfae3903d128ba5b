"""The states of a transaction and the allowed predecessors of each, with Kafka's numbers and names.

PREPARE_EPOCH_FENCE and DEAD are never stored: fencing is written as PREPARE_ABORT, expiry as a tombstone.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """Return the name that DescribeTransactions and ListTransactions show."""
        return "".join(word.capitalize() for word in self.name.split("_"))


RESTING = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})  # no open transaction
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})  # decided, but not all markers are written
STORED = RESTING | PREPARED | {State.ONGOING}

BEFORE: dict[State, frozenset[State]] = {
    State.EMPTY: RESTING,
    State.ONGOING: RESTING | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: RESTING | {State.ONGOING},  # if resting: an abort of nothing, in transaction version 2
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: RESTING,
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
}
BY_TEXT = {state.text: state for state in State}
