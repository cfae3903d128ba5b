"""Calls of an admin client: transient errors are retried until the call's timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.admin.item_errors import ItemsFailed
from headrace.client.wire.connection import Disconnected, NoResponse

T = TypeVar("T")
K = TypeVar("K")

# Transient errors. A missing topic is not among them: the administrator has named it, so that is reported at once.
PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class Calls:
    def __init__(self, timeout_s: float, backoff_s: float) -> None:
        self._timeout_s = timeout_s
        self._backoff_s = backoff_s

    def limit_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    async def until_answered(self, ask: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
        limit_s = self.limit_s(timeout_s)
        now = asyncio.get_running_loop().time
        deadline, failure = now() + limit_s, "no broker has answered"
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await ask()
            except (Disconnected, NoResponse, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in PASSING:
                    raise
                if now() + self._backoff_s >= deadline:
                    raise
                failure = str(error)
            except TimeoutError:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"not done within {limit_s:g} s (default.api.timeout.ms): {failure}"
                ) from None
            await asyncio.sleep(self._backoff_s)

    async def for_each(
        self,
        items: Sequence[K],
        ask: Callable[[Sequence[K]], Awaitable[Mapping[K, KafkaError | None]]],
        timeout_s: float | None,
    ) -> None:
        """Request all items, retrying only those with transient errors. Raise ItemsFailed for those that failed."""
        now = asyncio.get_running_loop().time
        deadline = now() + self.limit_s(timeout_s)
        refused: dict[object, KafkaError] = {}
        left: Sequence[K] = items
        while left:
            outcomes = await self.until_answered(_asking(ask, left), max(0.0, deadline - now()))
            again = []
            for item in left:
                error = outcomes.get(item, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"nothing was said of {item}"))
                if error is not None and error.code in PASSING and now() + self._backoff_s < deadline:
                    again.append(item)
                elif error is not None:
                    refused[item] = error
            left = again
            if left:
                await asyncio.sleep(self._backoff_s)
        if refused:
            raise ItemsFailed(refused)


def _asking(
    ask: Callable[[Sequence[K]], Awaitable[Mapping[K, KafkaError | None]]], items: Sequence[K]
) -> Callable[[], Awaitable[Mapping[K, KafkaError | None]]]:
    return lambda: ask(items)
