"""When queries are restarted and when they are given up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipelines.runner import supervision as s
from headrace.pipelines.runner.supervision import (
    Permanence,
    State,
    Watched,
    act_of,
    after,
)

DOWN = s.Failed("cannot connect", Permanence.TRANSIENT)
ODD = s.Failed("something odd", Permanence.UNCLEAR)
WRONG = s.Failed("there is no column x", Permanence.FINAL)


def run(query: Watched, *events: Any, now_ms: int = 0) -> Watched:
    for event in events:
        query = after(query, event, now_ms)
    return query


def started(query: Watched, now_ms: int = 0) -> Watched:
    return run(query, s.Starting(), s.Started(), now_ms=now_ms)


def test_a_query_is_started_at_once_and_runs() -> None:
    query = Watched(is_bounded=False)
    assert act_of(query, 0) == s.Start()
    query = after(query, s.Starting(), 0)
    assert act_of(query, 0) == s.Wait(None)
    query = after(query, s.Started(), 5)
    assert (query.state, query.restarts, query.error) == (State.RUNNING, 0, "")


def test_passing_failures_are_retried_without_limit_with_growing_back_off() -> None:
    query = Watched(is_bounded=False)
    now_ms = 0
    waits: list[int] = []
    for _ in range(200):
        query = after(started(query, now_ms), DOWN, now_ms)
        act = act_of(query, now_ms)
        assert isinstance(act, s.Wait) and query.error == "cannot connect"
        waits.append(act.until_ms - now_ms)
        assert act_of(query, act.until_ms - 1) == act
        now_ms = act.until_ms
        assert act_of(query, now_ms) == s.Start()
    assert waits[:8] == [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000] and set(waits[7:]) == {60000}


def test_progress_resets_the_back_off_and_clears_the_error() -> None:
    query = Watched(is_bounded=False)
    for _ in range(4):
        query = after(started(query), DOWN, 0)
    query = started(query)
    assert query.error, "as long as it only runs, nobody knows whether it is well"
    query = after(query, s.Progressed(), 0)
    assert (query.error, query.failures, query.restarts) == ("", 0, 4)
    assert act_of(after(query, DOWN, 0), 0) == s.Wait(1000)


def test_a_final_failure_gives_up_at_once() -> None:
    query = after(started(Watched(is_bounded=False)), WRONG, 0)
    assert act_of(query, 10**9) == s.GiveUp("there is no column x")


def test_unclear_failures_are_retried_up_to_a_limit() -> None:
    query = Watched(is_bounded=False)
    for _ in range(s.UNCLEAR_FAILURES_MAX):
        assert query.state is State.WAITING
        query = after(started(query), ODD, 0)
    assert act_of(query, 0) == s.GiveUp("something odd (5 failures in a row without progress)")


def test_passing_failures_do_not_count_towards_the_limit_of_unclear_ones() -> None:
    query = Watched(is_bounded=False)
    for _ in range(50):
        query = after(started(query), DOWN, 0)
    for _ in range(s.UNCLEAR_FAILURES_MAX - 1):
        query = after(started(query), ODD, 0)
        assert query.state is State.WAITING


def test_a_bounded_query_fails_after_repeated_passing_failures() -> None:
    query = Watched(is_bounded=True)
    waited_ms = 0
    while not query.is_over:
        query = after(started(query), DOWN, 0)
        waited_ms += query.due_ms if not query.is_over else 0
    assert query.state is State.FAILED and 60_000 < waited_ms < 300_000


def test_a_query_that_ends_is_done_only_if_it_is_bounded() -> None:
    assert after(started(Watched(is_bounded=True)), s.Ended(), 0).state is State.DONE
    ended = after(started(Watched(is_bounded=False)), s.Ended(), 0)
    assert ended.state is State.WAITING and "without having been stopped" in ended.error
    assert run(Watched(is_bounded=False), s.Starting(), s.Done()).state is State.DONE


@pytest.mark.parametrize("last", [s.Ended(), s.Done(), WRONG, DOWN], ids=lambda event: type(event).__name__)
def test_a_stopping_query_ends_as_stopped_whatever_its_last_event(last: Any) -> None:
    query = after(started(Watched(is_bounded=False)), s.StopRequest(), 0)
    assert act_of(query, 0) == s.Stop()
    query = run(query, s.Progressed(), s.Started(), last)
    assert query.state is State.STOPPED and act_of(query, 0) == s.Over()


def test_a_waiting_query_is_stopped_without_another_start() -> None:
    query = after(after(started(Watched(is_bounded=False)), DOWN, 0), s.StopRequest(), 0)
    assert query.state is State.STOPPED and query.starts == 1


EVENTS = st.sampled_from(
    [s.Starting(), s.Started(), s.Progressed(), DOWN, ODD, WRONG, s.Ended(), s.Done(), s.StopRequest()]
)


@settings(deadline=None, max_examples=300)
@given(st.booleans(), st.lists(st.tuples(EVENTS, st.integers(0, 100_000)), max_size=60))
def test_any_sequence_of_events_keeps_the_invariants(is_bounded: bool, steps: list[tuple[Any, int]]) -> None:
    query, now_ms, stop_requested = Watched(is_bounded=is_bounded), 0, False
    for event, passed_ms in steps:
        now_ms += passed_ms
        before, query = query, after(query, event, now_ms)
        stop_requested |= isinstance(event, s.StopRequest)
        if before.is_over:
            assert query == before, "what is over stays so"
            continue
        assert query.starts - before.starts == (isinstance(event, s.Starting) and before.state is State.WAITING)
        if stop_requested:
            assert query.state in (State.STOPPING, State.STOPPED), "nothing is started any more"
        if query.state is State.FAILED:
            assert query.error and isinstance(event, s.Failed | s.Ended)
        if query.state is State.WAITING and query != before:
            assert query.error and s.BACK_OFF_MS <= query.due_ms - now_ms <= s.BACK_OFF_MS_MAX
        assert query.doubts <= query.failures and query.doubts <= s.UNCLEAR_FAILURES_MAX
        # A query is never stuck: it waits until a time, waits for an event, or is over.
        act = act_of(query, now_ms)
        assert isinstance(act, s.Over | s.GiveUp) == query.is_over
        if isinstance(act, s.Wait) and act.until_ms is not None:
            assert act_of(query, act.until_ms) == s.Start()
