"""Starts coroutines immediately; one that never suspends finishes without a task or a turn of the event loop.

Until its first suspension a coroutine has no task, so it must not use timeouts or locks there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Rest(Generic[T]):
    """The rest of a suspended coroutine; await it once.

    The awaited object is never kept in a local variable. If it is a future that fails, the traceback of its exception refers to this
    frame; a reference from the frame back to the future would form a cycle, and everything that the traceback reaches (such as a
    decompressed batch) would stay in memory until the garbage collector runs.
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
    """Run the coroutine until it finishes or suspends; return its result or the rest. Its exceptions propagate."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return Rest(coroutine, awaited)


def at_once(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T | Rest[T]]:
    """Decorate a coroutine function so that calling it starts the coroutine with `begin`."""

    @wraps(function)
    def begun(*args: P.args, **kwargs: P.kwargs) -> T | Rest[T]:
        return begin(function(*args, **kwargs))

    return begun
