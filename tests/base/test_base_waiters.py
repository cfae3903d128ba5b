"""Parked responses are sent once, in order, and dropped if cancelled."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.metrics import Histogram, Metrics
from headrace.base.waiters import OffsetWaiter, OffsetWaiters


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 20)),
            st.tuples(st.sampled_from(["advance", "cancel"]), st.integers(0, 20)),
        )
    )
)
def test_offset_waiters_behave_like_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    waiters = OffsetWaiters()
    fired: list[int] = []
    model: list[tuple[int, int]] = []
    handles: dict[int, OffsetWaiter] = {}
    for number, (step, value) in enumerate(steps):
        if step == "add":
            handles[number] = waiters.add(value, partial(fired.append, number), lambda error: None)
            model.append((value, number))
        elif step == "cancel" and model:
            gone = model.pop(value % len(model))
            waiters.cancel(handles[gone[1]])
            waiters.cancel(handles[gone[1]])
        elif step == "advance":
            before = list(fired)
            due = sorted(one for one in model if one[0] <= value)
            model = [one for one in model if one[0] > value]
            waiters.advance(value)
            assert fired == before + [number for _, number in due]
        assert len(waiters) == len(model)


def test_losing_leadership_fails_each_waiting_request_once() -> None:
    waiters = OffsetWaiters()
    lost: list[int | str] = []

    def fail(offset: int, error: Exception) -> None:
        lost.append(offset)

    for offset in (3, 1, 2):
        waiters.add(offset, partial(lost.append, "passed"), partial(fail, offset))
    waiters.lose(RuntimeError())
    waiters.advance(10)
    assert lost == [1, 2, 3]


def test_histograms_count_by_upper_bound_and_metrics_are_singletons() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 5.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1] and histogram.count == 4 and histogram.total == 8.0
    assert (
        histogram.quantile(0.5) == 1.0 and histogram.quantile(0.75) == 2.0 and histogram.quantile(1.0) == float("inf")
    )
    metrics = Metrics()
    assert metrics.counter("a", "", x="1") is metrics.counter("a", "", x="1")
    assert metrics.counter("a", "", x="1") is not metrics.counter("a", "", x="2")
