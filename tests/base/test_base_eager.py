"""Eagerly started coroutines: finished at once if they never suspend, otherwise resumed or cancelled where they wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.base.eager import Rest, at_once, begin


async def nested(*waits: Any) -> int:
    total = 0
    for one in waits:
        total += one if isinstance(one, int) else await one
    return total


def test_a_coroutine_that_never_suspends_finishes_immediately() -> None:
    assert begin(nested(1, 2)) == 3
    assert at_once(nested)(4) == 4
    with pytest.raises(TypeError):
        begin(nested("a"))


def test_awaiting_a_finished_future_does_not_suspend() -> None:
    async def main() -> int:
        done = asyncio.get_running_loop().create_future()
        done.set_result(5)
        found = begin(nested(1, done))
        assert isinstance(found, int)
        return found

    assert asyncio.run(main()) == 6


@pytest.mark.parametrize("as_task", [True, False])
def test_a_suspended_coroutine_resumes_where_it_waits(as_task: bool) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        rest = begin(nested(1, first, asyncio.sleep(0, 10), second))
        assert isinstance(rest, Rest)
        loop.call_soon(first.set_result, 100)
        loop.call_later(0.001, second.set_result, 1000)
        return await (asyncio.ensure_future(rest) if as_task else rest)

    assert asyncio.run(main()) == 1111


def test_exceptions_and_cancellation_reach_a_suspended_coroutine() -> None:
    seen: list[str] = []

    async def careful(future: asyncio.Future[Any]) -> str:
        try:
            return await future
        except ValueError as error:
            return str(error)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        loop = asyncio.get_running_loop()
        failing = loop.create_future()
        rest = begin(careful(failing))
        assert isinstance(rest, Rest)
        failing.set_exception(ValueError("no"))  # before the result is awaited
        assert await rest == "no"
        cancelled = begin(careful(loop.create_future()))
        assert isinstance(cancelled, Rest)
        task = asyncio.ensure_future(cancelled)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]
