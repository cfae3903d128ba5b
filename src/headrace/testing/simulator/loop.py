"""An asyncio event loop whose time, network, threads and chance come from one seed.

Time jumps to the next timer. What asyncio promises is kept: `call_soon` is first in, first out. What it does not promise is decided
by the seed: the order of timers due at one instant, when a thread does its work and when the loop hears of it, and, in `network`,
how fast each connection is. A Process is what `kill -9` ends: after its death nothing that it had scheduled is ever run.
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

STEPS_MAX = 250_000  # ten times what a long seed takes
STEP_S = 1e-6  # what a turn of the loop costs: whoever polls with sleep(0) gets somewhere
THREAD_S = 0.004  # the usual work of a thread takes up to this long …
THREAD_SLOW_S = 0.4  # … now and then this long: a disk that was asleep
PENDING_SHOWN_MAX = 8


class Deadlock(Exception):
    """Nothing is ready and no timer is armed: what is awaited will never come."""


class TooManySteps(Exception):
    """The run did not end within its number of callbacks."""


class Process:
    """Everything that one simulated process schedules carries it, through the context of its tasks and callbacks."""

    __slots__ = ("alive", "died", "name")

    def __init__(self, name: str, died: asyncio.Future[None]) -> None:
        self.name = name
        self.alive = True
        self.died = died  # for whoever waits for it from outside


PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
NOBODY = Context()  # of the network and of the disk: they go on when a process dies


class _Handle(asyncio.Handle):
    __slots__ = ("process",)
    process: Process | None


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ("process",)
    process: Process | None


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self, chance: Random, steps_max: int = STEPS_MAX) -> None:
        self._chance = chance
        self._now = 0.0
        self._ready: deque[_Handle | _TimerHandle] = deque()
        self._timers: list[tuple[float, float, int, _TimerHandle]] = []
        self._serial = 0
        self._steps_max = steps_max
        self._closed = False
        self._network: Any = None
        # Kept until the end: a coroutine that the garbage collector closes would run its `finally` at a moment of no seed.
        self.tasks: list[asyncio.Task[Any]] = []
        self.errors: list[str] = []
        self.steps = 0
        # What a look at the clock costs: work that is cut in slices by time is cut, in some seeds, after a few looks.
        self.look_s = 0.0
        self.slow_share = 0.02  # of threads whose work takes long
        self.at_once_share = 0.1  # of threads whose work takes no time at all

    # --- running

    def run_until_complete(self, future: Any) -> Any:
        """Raises Deadlock, TooManySteps, or what the future raises."""
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
            if handle.cancelled() or (handle.process is not None and not handle.process.alive):
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
        """Exceptions that met nobody: of callbacks, and of tasks that no one has asked for their result."""
        lonely = [
            f"{task.get_coro().__qualname__} ended with {task.exception()!r}"  # type: ignore[union-attr]
            for task in self.tasks
            if task.done() and not task.cancelled() and getattr(task, "_log_traceback", False)
        ]
        return self.errors + lonely

    def close(self) -> None:
        """Tasks that are left are ended here and now, in their order; whatever they try to schedule is dropped."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for task in self.tasks:
            if not task.done():
                with suppress(Exception):  # it has no loop any more, and what it says of that interests nobody
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
        """The time, for the simulator itself: looking costs nothing."""
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
            heapq.heappush(self._timers, (when, self._chance.random(), self._serial, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells its loop; cancelled timers are passed over when their time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed or "was destroyed but it is pending" in context["message"]:
            return
        if context["message"].startswith(("Future exception was never", "Task exception was never")):
            return  # `unhandled` looks at all tasks; a future's exception may be meant for nobody
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

    def new_process(self, name: str) -> Process:
        return Process(name, self.create_future())

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of that process; all that it starts belongs to the process too."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(work, context=context)

    def end(self, process: Process) -> None:
        """From here on nothing of it runs."""
        if process.alive:
            process.alive = False
            process.died.set_result(None)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """The work is done at one moment and heard of at a later one; both die with the process that asked for it."""
        assert executor is None, "the simulator has one kind of thread"
        future = self.create_future()
        chance = self._chance
        kind = chance.random()
        lasts = THREAD_SLOW_S if kind < self.slow_share else THREAD_S
        if kind > 1 - self.at_once_share:
            lasts = 0.0
        starts = chance.random() * lasts
        ends = starts + chance.random() * lasts

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
            events._set_running_loop(None)  # a thread has no loop: what asks for one fails here as it would there
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


def _where(error: BaseException | None) -> str:
    traceback = error.__traceback__ if error is not None else None
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    code = traceback.tb_frame.f_code
    return f" in {code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}, line {traceback.tb_lineno}"
