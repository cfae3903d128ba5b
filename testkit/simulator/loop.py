"""An asyncio event loop whose time, network, threads and randomness come from one seed.

Time jumps to the next timer. Guarantees of asyncio are kept: `call_soon` is first in, first out. The seed decides what asyncio leaves
open: the order of timers due at one instant, when a thread does its work and when the loop gets the result, and, in `network`, the speed
of each connection. A Process can be ended as by `kill -9`: afterwards nothing that it had scheduled runs.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Work = Coroutine[Any, Any, T] | Generator[Any, None, T]

STEPS_MAX = 250_000  # ten times the callbacks of a long seed
STEP_S = 1e-6  # seconds per loop iteration, so that code that polls with sleep(0) makes progress
THREAD_S = 0.004  # maximum delay before most thread work runs, and again before its result arrives
THREAD_SLOW_S = 0.4  # the same for slow thread work, as with a disk that has to spin up
PENDING_SHOWN_MAX = 8


class Deadlock(Exception):
    """Nothing is ready and no timer is set: the awaited future will never complete."""


class TooManySteps(Exception):
    """The run did not end within the maximum number of callbacks."""


class Process:
    """A simulated process. The context of its tasks and callbacks carries it to everything that they schedule."""

    __slots__ = ("alive", "died", "held", "host", "name", "paused")

    def __init__(self, name: str, host: str, died: asyncio.Future[None]) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.held: list[_Handle | _TimerHandle] = []  # callbacks that became due while the process was paused
        self.died = died  # completes when the process ends, for code outside of it


PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
NO_PROCESS = Context()  # context of the network, which outlives every process


class _Handle(asyncio.Handle):
    __slots__ = ("process",)
    process: Process | None


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ("process",)
    process: Process | None


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self, random: Random, steps_max: int = STEPS_MAX) -> None:
        self._random = random
        self._now = 0.0
        self._ready: deque[_Handle | _TimerHandle] = deque()
        self._timers: list[tuple[float, float, int, _TimerHandle]] = []
        self._serial = 0
        self._steps_max = steps_max
        self._closed = False
        self._network: Any = None
        # Kept until the end: the garbage collector would run a coroutine's `finally` at a time that the seed does not control.
        self.tasks: list[asyncio.Task[Any]] = []
        self.errors: list[str] = []
        self._undelivered: set[asyncio.Future[Any]] = set()  # results whose receivers died before they could run
        self.steps = 0
        # Seconds per call of `time`. In some seeds it is so high that work sliced by time is interrupted after a few calls.
        self.look_s = 0.0
        self.slow_share = 0.02  # share of thread work that is slow
        self.at_once_share = 0.1  # share of thread work that takes no time

    # --- running

    def run_until_complete(self, future: Any) -> Any:
        """Run until the future is done; raise Deadlock, TooManySteps, or the future's exception."""
        future = asyncio.ensure_future(future, loop=self)
        events._set_running_loop(self)
        try:
            while not future.done():
                self._turn()
        finally:
            events._set_running_loop(None)
        return future.result()

    def _turn(self) -> None:
        ready, timers = self._ready, self._timers
        if ready:
            self._now += STEP_S
        else:
            while timers and timers[0][3].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise Deadlock(self._waiting_text())
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[3])
        for _ in range(len(ready)):
            handle = ready.popleft()
            process = handle.process
            if handle.cancelled():
                continue
            if process is not None and not process.alive:
                self._undelivered.update(_results(handle))
                continue
            if process is not None and process.paused:
                process.held.append(handle)
                continue
            self.steps += 1
            if self.steps > self._steps_max:
                raise TooManySteps(f"{self._steps_max} callbacks were run, until {self._now:.3f} s")
            handle._run()

    def _waiting_text(self) -> str:
        waiting = [
            task.get_coro().__qualname__  # type: ignore[union-attr]
            for task in self.tasks
            if not task.done() and self._is_alive(task.get_coro())
        ]
        shown = ", ".join(waiting[:PENDING_SHOWN_MAX])
        return f"at {self._now:.3f} s {len(waiting)} tasks wait for nothing that could come: {shown}"

    @staticmethod
    def _is_alive(coroutine: Any) -> bool:
        return getattr(coroutine, "cr_frame", None) is not None

    def unhandled(self) -> list[str]:
        """Return unhandled exceptions: those of callbacks, and of tasks whose result was never retrieved.

        A task is left out if its process was killed, or the run ended, before the receiver of its result could run.
        """
        under_way = self._undelivered.union(*map(_results, self._ready))
        lonely = [
            f"{task.get_coro().__qualname__} ended with {task.exception()!r}"  # type: ignore[union-attr]
            for task in self.tasks
            if task.done() and not task.cancelled() and getattr(task, "_log_traceback", False) and task not in under_way
        ]
        return self.errors + lonely

    def close(self) -> None:
        """Close all pending tasks now, in the order of their creation; drop whatever they try to schedule."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for task in self.tasks:
            if not task.done():
                with suppress(Exception):  # it may raise because the loop is closed, which is irrelevant
                    task.get_coro().close()
        self.tasks.clear()

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    # --- time and callbacks

    def time(self) -> float:
        self._now += self.look_s
        return self._now

    @property
    def now(self) -> float:
        """Return the time without advancing it by `look_s`; for the simulator itself."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        handle.process = PROCESS.get() if context is None else context.get(PROCESS)
        if not self._closed:
            self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _TimerHandle(when, callback, args, self, context)
        handle.process = PROCESS.get() if context is None else context.get(PROCESS)
        if not self._closed:
            self._serial += 1
            heapq.heappush(self._timers, (when, self._random.random(), self._serial, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are skipped when they are due."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed or "was destroyed but it is pending" in context["message"]:
            return
        if context["message"].startswith(("Future exception was never", "Task exception was never")):
            return  # `unhandled` checks all tasks; a future's exception may be ignored on purpose
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}{_where(error)}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # --- futures, tasks, threads

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Work[T], *, name: str | None = None, context: Context | None = None) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def new_process(self, name: str, host: str = "") -> Process:
        return Process(name, host, self.create_future())

    def pause(self, process: Process) -> None:
        """Pause the process as by SIGSTOP: it is alive, its connections stay open, but nothing of it runs."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Run what became due in the meantime, in its order."""
        process.paused = False
        held, process.held = process.held, []
        self._ready.extend(held)

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Create a task of that process; everything it starts belongs to the process too."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(work, context=context)

    def end(self, process: Process) -> None:
        """End the process: none of its callbacks runs any more."""
        if process.alive:
            process.alive = False
            self._undelivered.update(*map(_results, process.held))
            process.died.set_result(None)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` at one moment and deliver its result later; neither happens if the calling process dies first."""
        assert executor is None, "the simulator has one kind of thread"
        future = self.create_future()
        random = self._random
        kind = random.random()
        lasts = THREAD_SLOW_S if kind < self.slow_share else THREAD_S
        if kind > 1 - self.at_once_share:
            lasts = 0.0
        starts = random.random() * lasts
        ends = starts + random.random() * lasts

        def finish(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def work() -> None:
            if future.cancelled():
                return
            result, error = None, None
            events._set_running_loop(None)  # a thread has no loop, so code that needs one must fail here too
            try:
                result = func(*args)
            except Exception as raised:
                error = raised
            finally:
                events._set_running_loop(self)
            self.call_later(ends - starts, finish, result, error)

        self.call_later(starts, work)
        return future

    # --- network

    def attach(self, network: Any) -> None:
        self._network = network

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self._network.create_server(protocol_factory, host, port, **options)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self._network.create_connection(protocol_factory, host, port, **options)


def _results(handle: _Handle | _TimerHandle) -> list[asyncio.Future[Any]]:
    """Return the futures and tasks whose results a callback would receive."""
    return [argument for argument in handle._args or () if isinstance(argument, asyncio.Future)]


def _where(error: BaseException | None) -> str:
    traceback = error.__traceback__ if error is not None else None
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    code = traceback.tb_frame.f_code
    return f" in {code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}, line {traceback.tb_lineno}"
