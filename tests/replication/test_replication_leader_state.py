"""What a leader concludes from its followers' fetches: the replicated end, who is caught up, who lags."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.replication.leader_state import UNKNOWN_OFFSET, LeaderState

LAG_MS_MAX = 100


def make_state(now_ms: int = 0) -> LeaderState:
    return LeaderState((2, 3), (1, 2), now_ms)


def test_nothing_is_replicated_before_every_member_has_fetched() -> None:
    state = LeaderState((2, 3), (1, 2, 3), 0)
    assert state.replicated_end(10, (1, 2, 3)) == UNKNOWN_OFFSET
    state.fetched(2, 7, 0, 5, 10, 1)
    assert state.replicated_end(10, (1, 2, 3)) == UNKNOWN_OFFSET
    assert state.replicated_end(10, (1, 2)) == 7
    state.fetched(3, 4, 0, 5, 10, 1)
    assert (state.replicated_end(10, (1, 2, 3)), state.replicated_end(10, (1,))) == (4, 10)


def test_a_follower_is_caught_up_at_the_time_of_a_fetch_that_reaches_the_log_end() -> None:
    state = make_state()
    state.fetched(2, 10, 0, 5, 10, 50)
    assert state.lagging((1, 2), 20, 50 + LAG_MS_MAX, LAG_MS_MAX) == []
    assert state.lagging((1, 2), 20, 51 + LAG_MS_MAX, LAG_MS_MAX) == [2]
    assert state.lagging((1, 2), 10, 10_000, LAG_MS_MAX) == []  # nothing was appended since


def test_a_follower_that_has_what_the_leader_had_at_its_previous_fetch_was_caught_up_then() -> None:
    state = make_state()
    for fetch in range(10):  # always one batch behind
        state.fetched(2, fetch * 5, 0, 5, fetch * 5 + 5, fetch * 90)
    assert state.lagging((1, 2), 50, 8 * 90 + LAG_MS_MAX, LAG_MS_MAX) == []
    assert state.lagging((1, 2), 50, 8 * 90 + LAG_MS_MAX + 1, LAG_MS_MAX) == [2]


def test_a_member_of_the_isr_gets_the_whole_lag_time_to_reach_a_new_leader() -> None:
    state = make_state(now_ms=1000)
    assert state.lagging((1, 2), 5, 1000 + LAG_MS_MAX, LAG_MS_MAX) == []
    assert state.lagging((1, 2), 5, 1001 + LAG_MS_MAX, LAG_MS_MAX) == [2]


def test_a_fetch_of_an_earlier_incarnation_is_not_recorded() -> None:
    state = make_state()
    assert state.fetched(2, 8, 0, 7, 10, 1)
    assert not state.fetched(2, 9, 0, 6, 10, 2)
    assert state.get(2).log_end == 8
    assert state.fetched(2, 3, 0, 8, 10, 3)  # restarted with a truncated log
    assert state.get(2).log_end == 3


def test_a_follower_that_asks_again_for_records_that_it_was_sent_may_have_found_damage() -> None:
    state = make_state()
    suspicious = []
    for _ in range(10):
        state.fetched(2, 8, 0, 5, 10, 1)
        suspicious.append(state.get(2).may_have_found_damage)
        state.sent(2, 8)
    assert [number for number, is_suspicious in enumerate(suspicious) if is_suspicious] == [1, 2, 4, 8]
    state.fetched(2, 9, 0, 5, 10, 1)
    state.fetched(2, 9, 0, 5, 10, 1)  # it was sent nothing
    assert not state.get(2).may_have_found_damage


def test_a_follower_that_asks_again_after_a_restart_has_found_no_damage() -> None:
    state = make_state()
    state.fetched(2, 7, 0, 5, 10, 1)
    state.sent(2, 7)
    state.fetched(2, 7, 0, 6, 10, 2)  # in the next epoch of the broker
    follower = state.get(2)
    assert follower is not None and not follower.may_have_found_damage
    state.sent(2, 7)
    state.fetched(2, 7, 0, 6, 10, 3)
    assert follower.may_have_found_damage


def test_a_reassignment_keeps_the_progress_of_the_followers_that_stay() -> None:
    state = make_state()
    state.fetched(2, 8, 0, 7, 10, 1)
    state.assign((2, 4))
    assert (state.get(2).log_end, state.get(3), state.get(4).log_end) == (8, None, UNKNOWN_OFFSET)


def test_the_low_watermark_is_the_smallest_log_start_on_live_brokers() -> None:
    state = make_state()
    state.fetched(2, 8, 4, 7, 10, 1)
    assert (state.low_watermark(5, (1, 2)), state.low_watermark(3, (1, 2))) == (4, 3)
    assert state.low_watermark(5, (1, 2, 3)) == UNKNOWN_OFFSET  # 3 has not fetched yet
    assert state.low_watermark(5, (1,)) == 5


@given(
    st.lists(
        st.tuples(st.sampled_from([2, 3]), st.integers(0, 20), st.integers(0, 20), st.integers(0, 50)), max_size=40
    )
)
def test_the_caught_up_time_is_that_of_a_simple_model(fetches: list[tuple[int, int, int, int]]) -> None:
    """Compare with the whole history: the last time whose log end the follower is known to have reached."""
    state = LeaderState((2, 3), (), 0)
    history: dict[int, list[tuple[int, int, int]]] = {2: [], 3: []}
    leader_end = now_ms = 0
    for replica, wanted, appended, passed in fetches:
        leader_end, now_ms = leader_end + appended, now_ms + passed
        log_end = min(wanted * 5, leader_end)
        state.fetched(replica, log_end, 0, 1, leader_end, now_ms)
        history[replica].append((log_end, leader_end, now_ms))
    for replica, seen in history.items():
        expected = 0
        for (_, end_then, then_ms), (log_end, end, at_ms) in zip([(0, -1, 0), *seen], seen, strict=False):
            if log_end >= end:
                expected = max(expected, at_ms)
            elif end_then >= 0 and log_end >= end_then:
                expected = max(expected, then_ms)
        assert state.get(replica).caught_up_ms == expected
