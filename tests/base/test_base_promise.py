"""Promises: one outcome, callbacks in the call that provides it, and awaiting them like a future."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from headrace.base.promise import Promise


def test_callbacks_run_in_the_call_that_provides_the_value_in_their_order() -> None:
    promise: Promise[int] = Promise()
    seen: list[tuple[str, int]] = []
    promise.add_done_callback(lambda done: seen.append(("first", done.result())))
    promise.add_done_callback(lambda done: seen.append(("second", done.result())))
    promise.set_result(7)
    assert seen == [("first", 7), ("second", 7)]
    promise.add_done_callback(lambda done: seen.append(("late", done.result())))
    assert seen[-1] == ("late", 7)


def test_a_promise_has_one_outcome() -> None:
    promise: Promise[int] = Promise()
    with pytest.raises(asyncio.InvalidStateError, match="not done"):
        promise.result()
    promise.set_exception(ValueError("broken"))
    with pytest.raises(asyncio.InvalidStateError, match="done already"):
        promise.set_result(1)
    assert not promise.cancel() and not promise.cancelled()
    assert isinstance(promise.exception(), ValueError)
    with pytest.raises(ValueError, match="broken"):
        promise.result()


def test_a_cancelled_promise_calls_back_and_has_no_result() -> None:
    promise: Promise[int] = Promise()
    seen: list[bool] = []
    promise.add_done_callback(lambda done: seen.append(done.cancelled()))
    assert promise.cancel() and seen == [True]
    with pytest.raises(asyncio.CancelledError):
        promise.result()
    with pytest.raises(asyncio.InvalidStateError):
        promise.set_result(1)


def test_a_failing_callback_neither_stops_the_others_nor_reaches_the_provider(caplog: pytest.LogCaptureFixture) -> None:
    promise: Promise[int] = Promise()
    seen: list[int] = []
    promise.add_done_callback(lambda done: 1 // 0)
    promise.add_done_callback(lambda done: seen.append(done.result()))
    promise.set_result(7)
    assert seen == [7]
    assert "a callback of a promise failed" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_promise_can_be_awaited_before_and_after_it_is_done() -> None:
    async def work() -> None:
        promise: Promise[int] = Promise()
        asyncio.get_running_loop().call_soon(promise.set_result, 7)
        assert await promise == 7
        assert await promise == 7
        failed: Promise[int] = Promise()
        asyncio.get_running_loop().call_soon(failed.set_exception, ValueError("broken"))
        with pytest.raises(ValueError, match="broken"):
            await failed

    asyncio.run(work())


def test_cancelling_the_task_that_awaits_a_promise_cancels_it() -> None:
    async def work() -> None:
        promise: Promise[int] = Promise()

        async def wait() -> int:
            return await promise

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert promise.cancelled()

    asyncio.run(work())


def test_an_exception_of_the_caught_kind_becomes_a_value() -> None:
    source: Promise[int] = Promise()
    caught = source.catch(KeyError, lambda error: len(error.args))
    source.set_exception(KeyError("a"))
    assert caught.result() == 1
    other: Promise[int] = Promise()
    passed = other.catch(KeyError, lambda error: 0)
    other.set_exception(ValueError("broken"))
    assert isinstance(passed.exception(), ValueError)
    good: Promise[int] = Promise()
    same = good.catch(KeyError, lambda error: 0)
    good.set_result(7)
    assert same.result() == 7


def test_cancelling_either_end_of_a_caught_promise_cancels_the_other() -> None:
    source: Promise[int] = Promise()
    caught = source.catch(KeyError, lambda error: 0)
    caught.cancel()
    assert source.cancelled()
    source = Promise()
    caught = source.catch(KeyError, lambda error: 0)
    source.cancel()
    assert caught.cancelled()


def test_an_exception_that_was_raised_does_not_keep_its_promise_alive() -> None:
    """The traceback of an exception refers to the frames it went through: a cycle would keep a whole response in memory."""
    promise: Promise[int] = Promise()
    held = _Value()
    reference = weakref.ref(held)
    promise.add_done_callback(lambda _, kept=held: None)  # type: ignore[misc]
    promise.set_exception(ValueError("broken"))
    del held
    gc.disable()
    try:
        with pytest.raises(ValueError, match="broken") as raised:
            promise.result()
        frames = []
        traceback = raised.value.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        assert all("self" not in frame.f_locals for frame in frames if frame.f_code.co_name == "result")
        assert reference() is None
    finally:
        gc.enable()


class _Value:
    """Something that can be referred to weakly."""
