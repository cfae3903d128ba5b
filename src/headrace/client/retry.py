"""Retries with exponential backoff, jitter and a deadline (KIP-580).

    retry = Retry(RetryPolicy(codes=TRANSIENT), timeout_s=30.0)
    return await retry.run(attempt)

A loop that must do something between attempts uses `pause` instead:

    while True:
        try:
            return await attempt()
        except UNREACHABLE as error:
            coordinator.forget()
            await retry.pause(error)

Time comes from the event loop, so that retries also work in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import NamedTuple, Self, TypeVar, cast

from headrace.base.errors import RETRIABLE, ErrorCode, HeadraceError, KafkaError
from headrace.client.wire.connection import Disconnected, NoResponse
from headrace.options.table import Value

T = TypeVar("T")

BACKOFF_S, BACKOFF_S_MAX = 0.1, 1.0  # Kafka's defaults of retry.backoff.ms and retry.backoff.max.ms
FACTOR = 2
JITTER = 0.2
EXPONENT_MAX = 30
UNREACHABLE = (Disconnected, NoResponse)

_RANDOM = Random()


class Backoff(NamedTuple):
    """Pauses that double with each failure in a row, up to a limit, with random jitter."""

    first_s: float = BACKOFF_S
    max_s: float = BACKOFF_S_MAX

    @classmethod
    def of(cls, values: Mapping[str, Value], name: str = "retry") -> Self:
        """Return the backoff that the options `<name>.backoff.ms` and `<name>.backoff.max.ms` configure."""
        first_s, max_s = (cast(int, values[f"{name}.backoff.{suffix}"]) / 1000 for suffix in ("ms", "max.ms"))
        return cls(min(first_s, max_s), max_s)

    def pause_s(self, failures: int, random: Random = _RANDOM) -> float:
        """Return the pause in seconds after this many failures in a row, the first of which counts as 1."""
        pause_s = min(self.max_s, self.first_s * float(FACTOR ** min(failures - 1, EXPONENT_MAX)))
        return pause_s * random.uniform(1 - JITTER, 1 + JITTER)


class RetryPolicy(NamedTuple):
    """How long to pause between attempts, and which errors are worth another one."""

    backoff: Backoff = Backoff()
    codes: frozenset[ErrorCode] = RETRIABLE  # codes of KafkaError
    exceptions: tuple[type[Exception], ...] = UNREACHABLE  # exceptions without a code
    final: tuple[type[Exception], ...] = ()  # exceptions that are not retried, regardless of their code

    def is_retriable(self, error: Exception) -> bool:
        """Return whether to retry after the error: a KafkaError by its code, any other exception by its type."""
        if isinstance(error, self.final):
            return False
        return error.code in self.codes if isinstance(error, KafkaError) else isinstance(error, self.exceptions)


class DeadlineExceeded(HeadraceError):
    """An attempt was still running at the deadline; the cause is the error of the previous attempt, if there was one."""


class Retry:
    """The attempts at one operation."""

    def __init__(
        self,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008 -- immutable
        timeout_s: float | None = None,
        *,
        now: Callable[[], float] | None = None,
        random: Random = _RANDOM,
    ) -> None:
        """Start now; without a timeout there is no deadline. `now` is the event loop's time unless given."""
        self._policy = policy
        self._now = asyncio.get_running_loop().time if now is None else now
        self._random = random
        self._failures = 0
        self.deadline = None if timeout_s is None else self._now() + timeout_s

    @property
    def left_s(self) -> float:
        """Return the seconds until the deadline, at least 0; infinity if there is none."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - self._now())

    def reset(self) -> None:
        """Make the next pause as short as the first, after a success or progress."""
        self._failures = 0

    def next_pause_s(self, error: Exception) -> float:
        """Count a failure and return how long to pause; raise `error` if the deadline comes before the pause ends."""
        self._failures += 1
        pause_s = self._policy.backoff.pause_s(self._failures, self._random)
        if self.deadline is not None and self._now() + pause_s >= self.deadline:
            raise error
        return pause_s

    async def pause(self, error: Exception) -> None:
        """Sleep until the next attempt is due; raise `error` if it is not retriable or the deadline comes first."""
        if not self._policy.is_retriable(error):
            raise error
        await self._sleep(error)

    async def _sleep(self, error: Exception) -> None:
        await asyncio.sleep(self.next_pause_s(error))
        if self.left_s <= 0:
            raise error  # a busy event loop overslept: an attempt without time could only fail for a worse reason

    async def run(
        self,
        attempt: Callable[[], Awaitable[T]],
        before_retry: Callable[[], object] | None = None,
        *,
        cut_off: bool = False,
    ) -> T:
        """Return the result of the first attempt that succeeds.

        Raise an error that is not retriable at once, and any other if the deadline comes before the next attempt.
        `before_retry` is called before each pause, for example to forget a leader. An attempt may outlast the deadline,
        unless `cut_off` is set: then it is cancelled at the deadline, and DeadlineExceeded is raised.
        """
        failure: Exception | None = None
        while True:
            scope = asyncio.timeout_at(self.deadline if cut_off else None)
            try:
                async with scope:
                    return await attempt()
            except Exception as error:
                if scope.expired() and type(error) is TimeoutError:
                    raise DeadlineExceeded("no response") from failure
                if not self._policy.is_retriable(error):
                    raise
                failure = error
            if before_retry is not None:
                before_retry()
            await self._sleep(failure)
