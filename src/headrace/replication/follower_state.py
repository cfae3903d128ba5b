"""What a follower does with its leader's responses: where it truncates, how it reacts to errors, when it fetches again."""

from __future__ import annotations

from enum import Enum, auto

from headrace.base.errors import ErrorCode
from headrace.storage.leader_epochs import UNDEFINED_EPOCH, EpochEnd

METADATA_DELAY_MS = 10  # first pause when the leader does not have this broker's metadata yet
DELAY_MS_MAX = 30_000  # longest pause between two attempts of a partition that keeps failing
EXPONENT_MAX = 10
CORRUPT_FETCHES_MAX = 2  # fetches in a row with a corrupt batch, after which the partition is reported as failed


class Reaction(Enum):
    DELAY = auto()  # transient: try again after a pause
    RETRY_SOON = (
        auto()
    )  # the leader has not got the metadata yet that this broker has: that is a matter of milliseconds
    FIND_RANGE = auto()  # the fetch offset is outside the leader's log: ask for its first and last offset
    AWAIT_METADATA = auto()  # the leader is in a later epoch: wait for this broker's metadata to get there
    COUNT_CORRUPTION = auto()


# Every other error of a partition delays it.
REACTIONS = {
    ErrorCode.OFFSET_OUT_OF_RANGE: Reaction.FIND_RANGE,
    ErrorCode.UNKNOWN_TOPIC_ID: Reaction.RETRY_SOON,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.RETRY_SOON,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Reaction.RETRY_SOON,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Reaction.RETRY_SOON,
    ErrorCode.FENCED_LEADER_EPOCH: Reaction.AWAIT_METADATA,
    ErrorCode.CORRUPT_MESSAGE: Reaction.COUNT_CORRUPTION,
}


def reaction_to(code: ErrorCode) -> Reaction:
    return REACTIONS.get(code, Reaction.DELAY)


def truncation_offset(leader: EpochEnd, own: EpochEnd, log_end: int) -> int:
    """Return where a follower truncates whose log diverges from its leader's.

    `leader` is the largest epoch up to the follower's last one that the leader knows, with its end; `own` is the follower's
    largest epoch up to that one, with its end. Up to the smaller end both logs have the same records. If the epochs differ, the
    follower has to fetch, and possibly truncate, again.
    """
    if own.epoch == UNDEFINED_EPOCH:
        return min(leader.end_offset, log_end)
    return min(leader.end_offset, own.end_offset, log_end)


def restart_offset(leader_start: int, leader_end: int, log_end: int) -> tuple[int, bool]:
    """Return where a follower continues whose fetch offset is outside the leader's log, and whether it drops its own.

    A log that is longer than the leader's is truncated. One that ends below the leader's is of no use any more.
    """
    if log_end > leader_end:
        return leader_end, leader_end < leader_start
    return (leader_start, True) if log_end < leader_start else (log_end, False)


class FollowerState:
    """The fetching of one partition from one leader in one leader epoch."""

    __slots__ = ("_backoff_ms", "_corrupt_fetches", "_failures", "delayed_until_ms", "is_waiting", "leader_epoch")

    def __init__(self, leader_epoch: int, backoff_ms: int) -> None:
        self.leader_epoch = leader_epoch
        self._backoff_ms = backoff_ms
        self._failures = 0
        self._corrupt_fetches = 0
        self.delayed_until_ms = 0
        self.is_waiting = False  # for a newer leader epoch, which replaces this state

    @property
    def is_failed(self) -> bool:
        """Return whether the leader sends corrupt batches again and again: its disk may be damaged."""
        return self._corrupt_fetches >= CORRUPT_FETCHES_MAX

    def is_due(self, now_ms: int) -> bool:
        return not self.is_waiting and self.delayed_until_ms <= now_ms

    def succeeded(self) -> None:
        self._failures = self._corrupt_fetches = 0
        self.delayed_until_ms = 0

    def delay(self, now_ms: int, first_ms: int | None = None) -> None:
        """Pause after an error, at first for `first_ms` or the configured time; the pause doubles with each error in a row."""
        pause_ms = (self._backoff_ms if first_ms is None else first_ms) * 2 ** min(self._failures, EXPONENT_MAX)
        self.delayed_until_ms = now_ms + min(pause_ms, max(DELAY_MS_MAX, self._backoff_ms))
        self._failures += 1

    def corrupt(self, now_ms: int) -> bool:
        """Fetch once more at once, then pause; return whether the partition has just become failed."""
        self._corrupt_fetches += 1
        if self._corrupt_fetches >= CORRUPT_FETCHES_MAX:
            self.delay(now_ms)
        return self._corrupt_fetches == CORRUPT_FETCHES_MAX

    def await_metadata(self) -> None:
        self.is_waiting = True
