"""Retries in virtual time: pauses, deadlines, and which errors end them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import pytest
from testkit.simulator.loop import SimulatedLoop

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.client.retry import JITTER, Backoff, DeadlineExceeded, Retry, RetryPolicy
from headrace.client.wire.connection import Disconnected, NoResponse

T = TypeVar("T")

NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "t-0")
FORBIDDEN = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")


class Midpoint(Random):
    """A Random whose jitter is always 0."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    loop = SimulatedLoop(Random(1), steps_max=100_000)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def failing(*errors: Exception) -> tuple[Callable[[], Awaitable[str]], list[float]]:
    """Return an attempt that raises these errors and then succeeds, and the times of its calls."""
    left, times = list(errors), []

    async def attempt() -> str:
        times.append(asyncio.get_running_loop().time())
        if left:
            raise left.pop(0)
        return "done"

    return attempt, times


def pauses(times: list[float]) -> list[float]:
    return [round(later - earlier, 3) for earlier, later in pairwise(times)]


def test_pauses_double_up_to_the_limit() -> None:
    attempt, times = failing(*[NO_LEADER] * 6)

    async def main() -> str:
        return await Retry(RetryPolicy(Backoff(0.1, 1.0)), random=Midpoint()).run(attempt)

    assert run_virtual(main()) == "done"
    assert pauses(times) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_jitter_stays_within_its_share_of_the_pause() -> None:
    found = [Backoff(0.1, 1.0).pause_s(2, Random(seed)) for seed in range(200)]
    assert 0.2 * (1 - JITTER) <= min(found) < 0.17 and 0.23 < max(found) <= 0.2 * (1 + JITTER)


def test_many_failures_do_not_overflow() -> None:
    assert Backoff(0.1, 1.0).pause_s(10_000, Midpoint()) == 1.0


def test_the_first_pause_is_not_longer_than_the_limit() -> None:
    values = {"retry.backoff.ms": 500, "retry.backoff.max.ms": 200}
    assert Backoff.of(values) == (0.2, 0.2)
    assert Backoff.of({"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000}, "reconnect") == (0.05, 1.0)


def test_the_last_error_is_raised_when_the_deadline_comes_before_the_next_attempt() -> None:
    last = Disconnected("the last")
    attempt, times = failing(NO_LEADER, NO_LEADER, last, NO_LEADER)

    async def main() -> float:
        with pytest.raises(Disconnected, match="the last") as raised:
            await Retry(RetryPolicy(Backoff(0.1, 1.0)), 0.6, random=Midpoint()).run(attempt)
        assert raised.value is last
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == times[-1]  # without waiting for a deadline that cannot be met
    assert pauses(times) == [0.1, 0.2]


def test_no_attempt_begins_when_the_event_loop_has_overslept_the_deadline() -> None:
    attempt, times = failing(NO_LEADER)
    clock = iter([0.0, 0.0, 5.0])

    async def main() -> None:
        with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
            await Retry(RetryPolicy(Backoff(0.1, 1.0)), 1.0, now=lambda: next(clock)).run(attempt)

    run_virtual(main())
    assert len(times) == 1


@pytest.mark.parametrize("error", [FORBIDDEN, HeadraceError("unreadable"), ValueError("a bug")])
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    attempt, times = failing(error)

    async def main() -> None:
        with pytest.raises(type(error)) as raised:
            await Retry().run(attempt)
        assert raised.value is error

    run_virtual(main())
    assert len(times) == 1


def test_a_policy_chooses_codes_exceptions_and_final_exceptions() -> None:
    class Lasting(KafkaError):
        pass

    policy = RetryPolicy(codes=frozenset({ErrorCode.NOT_CONTROLLER}), exceptions=(NoResponse,), final=(Lasting,))
    assert policy.is_retriable(KafkaError(ErrorCode.NOT_CONTROLLER))
    assert policy.is_retriable(NoResponse("late"))
    assert not policy.is_retriable(NO_LEADER)
    assert not policy.is_retriable(Disconnected("gone"))
    assert not policy.is_retriable(Lasting(ErrorCode.NOT_CONTROLLER))


def test_before_retry_is_called_once_for_each_retry() -> None:
    attempt, _ = failing(NO_LEADER, Disconnected("gone"))
    calls: list[None] = []

    async def main() -> None:
        await Retry().run(attempt, lambda: calls.append(None))

    run_virtual(main())
    assert len(calls) == 2


@pytest.mark.parametrize("errors", [[], [NO_LEADER]])
def test_an_attempt_is_cut_off_at_the_deadline(errors: list[KafkaError]) -> None:
    attempt, times = failing(*errors)

    async def hanging() -> None:
        await attempt() if errors and not times else await asyncio.Event().wait()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeadlineExceeded) as raised:
            await Retry(timeout_s=2.0).run(hanging, cut_off=True)
        assert raised.value.__cause__ is (NO_LEADER if errors else None)
        return loop.time() - began

    assert run_virtual(main()) == pytest.approx(2.0, abs=0.001)


def test_a_request_timeout_within_the_deadline_is_retried() -> None:
    attempt, times = failing(NoResponse("late"))

    async def main() -> str:
        return await Retry(timeout_s=5.0).run(attempt, cut_off=True)

    assert run_virtual(main()) == "done"
    assert len(times) == 2


def test_pause_sleeps_until_the_deadline_is_near_and_reset_begins_with_the_first_pause() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        retry = Retry(RetryPolicy(Backoff(0.1, 1.0)), 2.0, random=Midpoint())
        times = [loop.time()]
        for turn in range(4):
            if turn == 2:
                retry.reset()
            await retry.pause(NO_LEADER)
            times.append(loop.time())
        assert retry.left_s == pytest.approx(1.4, abs=0.001)
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            await retry.pause(FORBIDDEN)
        await retry.pause(NO_LEADER)
        with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
            while True:
                await retry.pause(NO_LEADER)
        return times

    assert pauses(run_virtual(main())) == [0.1, 0.2, 0.1, 0.2]


def test_without_a_timeout_there_is_no_deadline() -> None:
    attempt, times = failing(*[NO_LEADER] * 50)

    async def main() -> float:
        retry = Retry()
        assert retry.left_s == float("inf")
        await retry.run(attempt, cut_off=True)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) > 30 and len(times) == 51


def test_blocking_callers_bring_their_own_clock() -> None:
    clock = iter([0.0, 0.0, 0.95])
    retry = Retry(RetryPolicy(Backoff(0.1, 1.0)), 1.0, now=lambda: next(clock), random=Midpoint())
    assert retry.next_pause_s(NO_LEADER) == pytest.approx(0.1)
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
        retry.next_pause_s(NO_LEADER)
