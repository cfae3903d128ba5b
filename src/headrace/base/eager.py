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
    """Of a coroutine that waits for something; to be awaited once."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    value = yield waits_for
                except BaseException as error:
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(value)
        except StopIteration as end:
            result: T = end.value
            return result


def begin(coroutine: Coroutine[Any, Any, T]) -> T | Rest[T]:
    """Its result, or what is left to be awaited. Raises what it raises."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return Rest(coroutine, waits_for)


def at_once(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T | Rest[T]]:
    """Begun when it is called."""

    @wraps(function)
    def begun(*args: P.args, **kwargs: P.kwargs) -> T | Rest[T]:
        return begin(function(*args, **kwargs))

    return begun
