"""A value that is provided later. Its callbacks run in the call that provides it.

A future of asyncio calls back in the next turn of the event loop, which costs more than handling a small request. So a response that
waits for another node is a promise: it is sent in the turn that receives what it waits for. The price is that callbacks run in
the middle of what the provider does. They may pass the value on, to a socket for example, but not change the provider's state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=Exception)

log = logging.getLogger(__name__)


class Awaited(Protocol[T_co]):
    """What promises and the futures of asyncio have in common."""

    def done(self) -> bool: ...

    def cancelled(self) -> bool: ...

    def cancel(self) -> bool: ...

    def result(self) -> T_co: ...

    def exception(self) -> BaseException | None: ...

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...

    def __await__(self) -> Generator[Any, None, T_co]: ...


class Promise(Generic[T]):
    """A result or an exception, provided once; `cancel` says that nobody needs it any more."""

    __slots__ = ("_callbacks", "_cancelled", "_done", "_error", "_value")

    def __init__(self) -> None:
        self._done = self._cancelled = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Promise[T]], object]] = []

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return self._cancelled

    def result(self) -> T:
        """Return the value of a promise that is done. Raise the exception that was provided instead."""
        if self._cancelled:
            raise asyncio.CancelledError
        if not self._done:
            raise asyncio.InvalidStateError("the promise is not done")
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the traceback refers to this frame, which must not refer back
        return cast("T", self._value)

    def exception(self) -> BaseException | None:
        if self._cancelled:
            raise asyncio.CancelledError
        if not self._done:
            raise asyncio.InvalidStateError("the promise is not done")
        return self._error

    def set_result(self, value: T) -> None:
        self._check_pending()
        self._value = value
        self._finish()

    def set_exception(self, error: Exception) -> None:
        self._check_pending()
        self._error = error
        self._finish()

    def _check_pending(self) -> None:
        if self._done:
            raise asyncio.InvalidStateError("the promise is done already")

    def cancel(self) -> bool:
        """End the promise without a value; return False if it is done already."""
        if self._done:
            return False
        self._cancelled = True
        self._finish()
        return True

    def add_done_callback(self, callback: Callable[[Promise[T]], object], /) -> None:
        """Call back with this promise when it is done, at once if it is."""
        if self._done:
            self._call(callback)
        else:
            self._callbacks.append(callback)

    def catch(self, kind: type[E], handle: Callable[[E], T]) -> Promise[T]:
        """Return a promise with the same outcome, but with the value that `handle` returns for exceptions of this kind."""
        caught: Promise[T] = Promise()

        def settle(_: Promise[T]) -> None:
            if caught._done:
                return
            if self._cancelled:
                caught.cancel()
            elif self._error is None:
                caught.set_result(cast("T", self._value))
            elif isinstance(self._error, kind):
                caught.set_result(handle(self._error))
            else:
                caught.set_exception(self._error)

        caught.add_done_callback(lambda _: self.cancel() if caught._cancelled else None)
        self.add_done_callback(settle)
        return caught

    def _finish(self) -> None:
        self._done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Promise[T]], object]) -> None:
        try:
            callback(self)
        except Exception:  # the provider has done its part, and goes on
            log.exception("a callback of a promise failed")

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if turn.done() else turn.set_result(None))
            try:
                yield from turn
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()
