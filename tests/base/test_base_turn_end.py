"""Work at the end of a turn: once for all events, without another iteration of the loop, and without starving it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from headrace.base.turn_end import ROUNDS_MAX, TurnEnd, turn_end_of


def in_a_loop(work: Callable[[TurnEnd, list[str]], None]) -> list[str]:
    """Run `work` on a loop, then three iterations of it; return what was recorded."""
    seen: list[str] = []

    async def main() -> None:
        work(turn_end_of(asyncio.get_running_loop()), seen)
        for number in range(3):
            seen.append(f"iteration {number}")
            await asyncio.sleep(0)

    asyncio.run(main())
    return seen


def test_work_runs_at_the_end_of_the_turn_in_which_it_was_added() -> None:
    def work(end: TurnEnd, seen: list[str]) -> None:
        end.begin()
        end.call(lambda: seen.append("work"))
        seen.append("event")
        end.end()

    assert in_a_loop(work)[:3] == ["event", "work", "iteration 0"]


def test_work_that_is_added_outside_a_turn_runs_in_the_next_iteration() -> None:
    def work(end: TurnEnd, seen: list[str]) -> None:
        end.call(lambda: seen.append("first"))
        end.call(lambda: seen.append("second"))

    assert in_a_loop(work)[:4] == ["iteration 0", "first", "second", "iteration 1"]


def test_work_that_adds_work_without_end_lets_the_loop_run_in_between() -> None:
    def work(end: TurnEnd, seen: list[str]) -> None:
        def again() -> None:
            seen.append("work")
            end.call(again)

        end.begin()
        end.call(again)
        end.end()

    seen = in_a_loop(work)
    assert seen[: ROUNDS_MAX + 1] == ["work"] * ROUNDS_MAX + ["iteration 0"]
    assert seen.count("work") > ROUNDS_MAX


def test_failing_work_stops_no_other_work(caplog: pytest.LogCaptureFixture) -> None:
    def work(end: TurnEnd, seen: list[str]) -> None:
        end.begin()
        end.call(lambda: 1 // 0)
        end.call(lambda: seen.append("work"))
        end.end()

    assert "work" in in_a_loop(work)
    assert "work at the end of a turn failed" in caplog.text


def test_an_interrupted_turn_is_over() -> None:
    def work(end: TurnEnd, seen: list[str]) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        end.begin()
        end.call(interrupt)
        with pytest.raises(KeyboardInterrupt):
            end.end()
        end.call(lambda: seen.append("work"))

    assert in_a_loop(work)[:2] == ["iteration 0", "work"]


def test_each_loop_has_one_which_does_not_keep_it_alive() -> None:
    loop = asyncio.new_event_loop()
    assert turn_end_of(loop) is turn_end_of(loop)
    reference = weakref.ref(loop)
    loop.close()
    del loop
    gc.collect()
    assert reference() is None
