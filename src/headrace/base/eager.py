"""Coroutines that are begun at once: one that turns out to wait for nothing is over then, without a task and a turn of the loop.

What it does before it first waits must not need a task of its own: no timeouts, no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Rest(Generic[T]):
    """The remainder of a coroutine that is waiting for something; await it once.

    What the coroutine waits for is never kept in a local variable: if it is a future that fails, its exception's traceback would refer to
    this frame and the frame back to the exception, and everything the traceback reaches (an unpacked batch, for one) would stay in
    memory until the garbage collector runs.
    """

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            while True:
                try:
                    value = yield self._take_awaited()
                except BaseException as error:
                    self._awaited = self._coroutine.throw(error)
                else:
                    self._awaited = self._coroutine.send(value)
        except StopIteration as end:
            result: T = end.value
            return result

    def _take_awaited(self) -> Any:
        awaited, self._awaited = self._awaited, None
        return awaited


def begin(coroutine: Coroutine[Any, Any, T]) -> T | Rest[T]:
    """Its result, or what is left to be awaited. Raises what it raises."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return Rest(coroutine, awaited)


def at_once(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T | Rest[T]]:
    """Begun when it is called."""

    @wraps(function)
    def begun(*args: P.args, **kwargs: P.kwargs) -> T | Rest[T]:
        return begin(function(*args, **kwargs))

    return begun
