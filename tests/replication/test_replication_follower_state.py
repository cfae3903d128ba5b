"""A follower's decisions: truncation of diverging logs, reactions to errors, pauses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ErrorCode
from headrace.replication.follower_state import (
    DELAY_MS_MAX,
    METADATA_DELAY_MS,
    FollowerState,
    Reaction,
    reaction_to,
    restart_offset,
    truncation_offset,
)
from headrace.storage.leader_epochs import EpochEnd, EpochStart, LeaderEpochs


def test_each_error_has_one_reaction() -> None:
    assert reaction_to(ErrorCode.OFFSET_OUT_OF_RANGE) is Reaction.FIND_RANGE
    assert reaction_to(ErrorCode.FENCED_LEADER_EPOCH) is Reaction.AWAIT_METADATA
    assert reaction_to(ErrorCode.CORRUPT_MESSAGE) is Reaction.COUNT_CORRUPTION
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID):
        assert reaction_to(code) is Reaction.RETRY_SOON
    assert reaction_to(ErrorCode.KAFKA_STORAGE_ERROR) is Reaction.DELAY


def test_a_fetch_offset_outside_the_leaders_log_gives_a_new_start() -> None:
    assert restart_offset(leader_start=0, leader_end=10, log_end=15) == (10, False)
    assert restart_offset(leader_start=20, leader_end=30, log_end=15) == (20, True)
    assert restart_offset(leader_start=0, leader_end=30, log_end=15) == (15, False)  # the leader has caught up


def test_pauses_double_up_to_a_limit_and_end_with_a_success() -> None:
    state = FollowerState(1, 1000)
    for pause_ms in (1000, 2000, 4000, 8000, 16_000, DELAY_MS_MAX, DELAY_MS_MAX):
        state.delay(0)
        assert state.delayed_until_ms == pause_ms and not state.is_due(pause_ms - 1) and state.is_due(pause_ms)
    state.succeeded()
    state.delay(0)
    assert state.delayed_until_ms == 1000


def test_a_leader_with_older_metadata_is_asked_again_soon() -> None:
    state = FollowerState(1, 1000)
    for pause_ms in (10, 20, 40, 80):
        state.delay(0, METADATA_DELAY_MS)
        assert state.delayed_until_ms == pause_ms


def test_a_corrupt_batch_is_fetched_again_once_before_the_partition_fails() -> None:
    state = FollowerState(1, 1000)
    assert (state.corrupt(0), state.is_due(0), state.is_failed) == (False, True, False)
    assert (state.corrupt(0), state.is_due(0), state.is_failed) == (True, False, True)
    assert state.corrupt(5000) is False  # reported once
    state.succeeded()
    assert not state.is_failed


def test_a_fenced_follower_waits_for_metadata() -> None:
    state = FollowerState(1, 1000)
    state.await_metadata()
    assert not state.is_due(10**12)


Log = list[int]  # the leader epoch of the record at each offset


def epochs_of(log: Log) -> LeaderEpochs:
    starts = [EpochStart(epoch, offset) for offset, epoch in enumerate(log) if offset == 0 or log[offset - 1] != epoch]
    return LeaderEpochs(starts)


@st.composite
def diverging_logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """Return the logs of a leader and a follower with a common prefix; no epoch was led by both after it."""
    common = sorted(draw(st.lists(st.integers(0, 3), max_size=8)))
    last = common[-1] if common else 0
    epochs = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=6))
    leader, follower = list(common), list(common)
    for epoch, (is_leaders, count) in enumerate(epochs, last + 1):
        (leader if is_leaders else follower).extend([epoch] * count)
    return leader, follower


@given(diverging_logs())
def test_repeated_truncation_ends_at_the_common_prefix(logs: tuple[Log, Log]) -> None:
    leader, follower = logs
    common = 0
    while common < min(len(leader), len(follower)) and leader[common] == follower[common]:
        common += 1
    leader_epochs = epochs_of(leader)
    leader_epochs.assign(100, len(leader))  # a leader records the start of its epoch before any record
    for _ in range(20):
        if not follower:
            break
        found = leader_epochs.end_offset_for(follower[-1], len(leader))
        if found.epoch == follower[-1] and found.end_offset >= len(follower):
            break
        own = epochs_of(follower).end_offset_for(found.epoch, len(follower))
        truncated = truncation_offset(EpochEnd(*found), own, len(follower))
        assert truncated < len(follower), "every truncation makes progress"
        del follower[truncated:]
    assert len(follower) == common or follower == leader[: len(follower)]
    assert follower == leader[: len(follower)]
