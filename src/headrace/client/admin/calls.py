"""Calls of an admin client: transient errors are retried until the call's timeout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.admin.item_errors import ItemsFailed
from headrace.client.retry import Backoff, DeadlineExceeded, Retry, RetryPolicy

T = TypeVar("T")
K = TypeVar("K")

# A missing topic is not among them: the administrator has named it, so that is reported at once.
TRANSIENT = frozenset(
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
    """Runs the calls of one admin client, with its default timeout and its pauses between attempts."""

    def __init__(self, timeout_s: float, backoff: Backoff) -> None:
        self._timeout_s = timeout_s
        self._policy = RetryPolicy(backoff, codes=TRANSIENT)

    def limit_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    async def run(self, attempt: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
        """Return the result of the first attempt that succeeds. Raise KafkaError REQUEST_TIMED_OUT at the timeout."""
        limit_s = self.limit_s(timeout_s)
        return await self._run(attempt, Retry(self._policy, limit_s), limit_s)

    async def _run(self, attempt: Callable[[], Awaitable[T]], retry: Retry, limit_s: float) -> T:
        try:
            return await retry.run(attempt, cut_off=True)
        except DeadlineExceeded as error:
            failure = error.__cause__ or "no broker has responded"
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"not done within {limit_s:g} s (default.api.timeout.ms): {failure}"
            ) from None

    async def for_each(
        self,
        items: Sequence[K],
        attempt: Callable[[Sequence[K]], Awaitable[Mapping[K, KafkaError | None]]],
        timeout_s: float | None,
    ) -> None:
        """Request all items, retrying only those with transient errors. Raise ItemsFailed for those that failed."""
        limit_s = self.limit_s(timeout_s)
        retry = Retry(self._policy, limit_s)
        failures: dict[object, KafkaError] = {}
        left: Sequence[K] = items

        async def attempt_left() -> None:
            nonlocal left
            outcomes = await attempt(left)
            errors = {item: outcomes.get(item, _missing(item)) for item in left}
            for item in left:
                failures.pop(item, None)
            failures.update({item: error for item, error in errors.items() if error is not None})
            left = [item for item, error in errors.items() if error is not None and error.code in TRANSIENT]
            if left:
                raise failures[left[0]]

        if left:
            try:
                await self._run(attempt_left, retry, limit_s)
            except KafkaError as error:
                if error not in failures.values():
                    raise
        if failures:
            raise ItemsFailed(failures)


def _missing(item: object) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the response does not contain {item}")
