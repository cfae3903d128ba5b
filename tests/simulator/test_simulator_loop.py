"""The simulated event loop: jumps in time, asyncio's ordering guarantees, seeded order elsewhere, and dead processes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from testkit.simulator.loop import Deadlock, SimulatedLoop, TooManySteps


def new_loop(seed: int = 0, **options: Any) -> SimulatedLoop:
    return SimulatedLoop(Random(seed), **options)


def test_time_jumps_to_the_next_timer() -> None:
    loop = new_loop()

    async def wait() -> float:
        await asyncio.sleep(86_400)
        return loop.time()

    assert 86_400 <= loop.run_until_complete(wait()) < 86_401


def test_call_soon_is_first_in_first_out_for_every_seed() -> None:
    async def main(seen: list[int]) -> None:
        for number in range(10):
            asyncio.get_running_loop().call_soon(seen.append, number)
        await asyncio.sleep(1)

    for seed in range(20):
        seen: list[int] = []
        new_loop(seed).run_until_complete(main(seen))
        assert seen == list(range(10))


def order_of_simultaneous_timers(seed: int) -> list[int]:
    loop = new_loop(seed)
    seen: list[int] = []
    for number in range(8):
        loop.call_at(1.0, seen.append, number)
    loop.run_until_complete(_sleep(2))
    return seen


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_the_seed_determines_the_order_of_simultaneous_timers() -> None:
    orders = [order_of_simultaneous_timers(seed) for seed in range(10)]
    assert len({tuple(order) for order in orders}) > 5
    assert orders == [order_of_simultaneous_timers(seed) for seed in range(10)]
    assert all(sorted(order) == list(range(8)) for order in orders)


def test_timers_fire_in_time_order_unless_cancelled() -> None:
    loop = new_loop()
    seen: list[float] = []
    for when in (3.0, 1.0, 2.0):
        loop.call_at(when, seen.append, when)
    loop.call_at(1.5, seen.append, "cancelled").cancel()
    loop.run_until_complete(_sleep(5))
    assert seen == [1.0, 2.0, 3.0]


def test_polling_with_sleep_0_advances_the_clock() -> None:
    loop = new_loop()

    async def poll() -> None:
        deadline = loop.time() + 0.001
        while loop.time() < deadline:
            await asyncio.sleep(0)

    loop.run_until_complete(poll())


def test_a_deadlock_and_an_endless_run_raise() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="wait_for_nothing"):
        new_loop().run_until_complete(wait_for_nothing())

    async def yield_forever() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(TooManySteps):
        new_loop(steps_max=1000).run_until_complete(yield_forever())


def test_unhandled_exceptions_are_recorded() -> None:
    loop = new_loop()

    def fail() -> None:
        raise RuntimeError("in a callback")

    async def fail_alone() -> None:
        raise RuntimeError("in a task")

    async def main() -> None:
        loop.call_soon(fail)
        task = loop.create_task(fail_alone())
        await asyncio.sleep(1)
        assert task.done()

    loop.run_until_complete(main())
    errors = loop.unhandled()
    assert len(errors) == 2 and "in a callback" in errors[0] and "in a task" in errors[1]


async def fail() -> None:
    raise RuntimeError("in a task")


async def catch(loop: SimulatedLoop) -> None:
    with pytest.raises(RuntimeError):
        await loop.create_task(fail())


def test_a_failure_in_the_last_step_of_a_run_is_not_unhandled_if_its_receiver_is_about_to_run() -> None:
    for turns in range(5):
        loop = new_loop()

        async def main(turns: int = turns, loop: SimulatedLoop = loop) -> None:
            loop.create_task(catch(loop))
            for _ in range(turns):
                await asyncio.sleep(0)

        loop.run_until_complete(main())
        assert loop.unhandled() == []


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_failure_is_not_unhandled_if_its_process_dies_before_the_receiver_runs(is_paused: bool) -> None:
    for turns in range(5):
        loop = new_loop()

        async def main(turns: int = turns, loop: SimulatedLoop = loop) -> None:
            process = loop.new_process("killed")
            loop.spawn(process, catch(loop))
            for _ in range(turns):
                await asyncio.sleep(0)
            if is_paused:
                loop.pause(process)
                await asyncio.sleep(1)
            loop.end(process)
            await asyncio.sleep(1)

        loop.run_until_complete(main())
        assert loop.unhandled() == []


def test_a_failure_that_nobody_waits_for_is_unhandled_though_its_process_dies_later() -> None:
    loop = new_loop()

    async def main() -> None:
        process = loop.new_process("killed")
        loop.spawn(process, fail())
        await asyncio.sleep(1)
        loop.end(process)

    loop.run_until_complete(main())
    assert len(loop.unhandled()) == 1


def test_executor_work_runs_later_and_outside_the_event_loop() -> None:
    loop = new_loop()

    def work(number: int) -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        if number < 0:
            raise ValueError(number)
        return number * 2

    async def main() -> None:
        began = loop.time()
        assert await loop.run_in_executor(None, work, 21) == 42
        assert loop.time() > began
        with pytest.raises(ValueError):
            await loop.run_in_executor(None, work, -1)
        assert asyncio.get_running_loop() is loop

    loop.run_until_complete(main())


def test_the_seed_determines_the_order_of_executor_work() -> None:
    def order(seed: int) -> list[int]:
        loop = new_loop(seed)
        seen: list[int] = []

        async def main() -> None:
            await asyncio.gather(*(loop.run_in_executor(None, seen.append, number) for number in range(5)))

        loop.run_until_complete(main())
        return seen

    orders = {tuple(order(seed)) for seed in range(10)}
    assert len(orders) > 3


def test_executor_work_cancelled_before_it_starts_does_not_run() -> None:
    seen: list[int] = []

    async def main(seed: int) -> None:
        future = asyncio.get_running_loop().run_in_executor(None, seen.append, seed)
        await asyncio.sleep(0.002)
        future.cancel()
        await asyncio.sleep(1)

    for seed in range(20):
        new_loop(seed).run_until_complete(main(seed))
    assert 0 < len(seen) < 20


def test_no_callback_or_task_of_an_ended_process_runs() -> None:
    loop = new_loop()
    seen: list[str] = []

    async def inner() -> None:
        await asyncio.sleep(0.5)
        seen.append("task")

    async def live() -> None:
        loop.call_later(0.5, seen.append, "timer")
        loop.call_soon(seen.append, "before")
        loop.run_in_executor(None, lambda: seen.append("thread"))
        task = loop.create_task(inner())
        try:
            await task
        finally:
            seen.append("finally")

    async def main() -> None:
        process = loop.new_process("p")
        loop.spawn(process, live())
        await asyncio.sleep(0.000001)
        while "before" not in seen:
            await asyncio.sleep(0)
        loop.end(process)
        await process.died
        loop.call_later(0.1, seen.append, "another process")
        await asyncio.sleep(5)

    loop.run_until_complete(main())
    assert seen == ["before", "another process"]
    loop.close()


def test_reading_the_clock_can_take_simulated_time() -> None:
    loop = new_loop()
    loop.look_s = 0.001
    first = loop.time()
    assert loop.time() - first == pytest.approx(0.001)
    assert loop.now == loop.now
