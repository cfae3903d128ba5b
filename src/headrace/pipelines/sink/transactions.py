"""Describes, ends and fences the transactions of tasks on behalf of the driver, many at once."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.client.admin.transactions import NO_TIMEOUT_MS, TransactionFilter, list_transactions
from headrace.client.producer.transaction_requests import (
    FatalTransactionError,
    InvalidTransactionState,
    ProducerFenced,
    TransactionError,
    TransactionIdentity,
    end_transaction,
    init_producer_id,
)
from headrace.client.retry import Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import (
    COORDINATOR_TRANSIENT,
    TRANSACTION,
    CoordinatorConnection,
    find_coordinator,
    find_coordinators,
)
from headrace.client.wire.frames import UnexpectedResponse
from headrace.pipelines.sink.commands import ONGOING, UNDESCRIBED, Ended, Known, TaskTransaction
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest

T = TypeVar("T")

AT_ONCE_MAX = 32  # concurrent requests
FENCE_S_MAX = 10.0
FENCED_TIMEOUT_MS = 60_000  # transaction timeout given to a producer that exists only to fence
_POLICY = RetryPolicy(final=(TransactionError,))

_LOG = logging.getLogger("headrace.spark")


class TaskTransactions:
    """The transactions of one sink: those whose transactional ids have this prefix."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._coordinators: dict[str, int] = {}

    async def end(self, transactions: Sequence[TaskTransaction], *, commit: bool) -> list[Ended]:
        names = [one.transactional_id for one in transactions]
        await retry_until_timeout(self._cluster, lambda: self._find_coordinators(names), self._coordinators.clear)
        return await _gather(self._end(one, commit) for one in transactions)

    async def _end(self, transaction: TaskTransaction, commit: bool) -> Ended:
        identity = TransactionIdentity(*transaction[:3])
        node_id = self._coordinators.get(identity.transactional_id)
        coordinator = CoordinatorConnection(self._cluster, identity.transactional_id, TRANSACTION, node_id=node_id)
        try:
            await end_transaction(
                self._cluster, identity, commit=commit, timeout_s=self._cluster.timeout_s, coordinator=coordinator
            )
        except InvalidTransactionState:
            return Ended.REFUSED
        except ProducerFenced:
            return Ended.FENCED
        except FatalTransactionError as error:
            if error.code not in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                raise
            return Ended.FENCED
        return Ended.DONE

    async def list_open(self) -> list[str]:
        for pattern in (re.escape(self._prefix) + ".*", None):
            try:
                ongoing = TransactionFilter(states=[ONGOING], pattern=pattern)
                listed = await retry_until_timeout(self._cluster, partial(list_transactions, self._cluster, ongoing))
                return [one.transactional_id for one in listed if one.transactional_id.startswith(self._prefix)]
            except KafkaError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
            except UnexpectedResponse:
                break  # before Kafka 3.0: transactions that failed attempts left open end by their timeout
        return []

    async def describe(self, names: Sequence[str]) -> dict[str, Known | None]:
        found: dict[str, Known | None] = {}

        async def attempt() -> None:
            left = [name for name in names if name not in found]
            await self._find_coordinators(left)
            by_node: dict[int, list[str]] = defaultdict(list)
            for name in left:
                by_node[self._coordinators[name]].append(name)
            for answers in await _gather(self._describe_at(node, some) for node, some in by_node.items()):
                found.update(answers)
            if len(found) < len(set(names)):
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the transactions of {self._prefix}")

        try:
            await retry_until_timeout(self._cluster, attempt, self._coordinators.clear)
        except UnexpectedResponse:
            return dict.fromkeys(names, Known(UNDESCRIBED, -1, -1, -1, None))
        return found

    async def _describe_at(self, node: int, names: list[str]) -> dict[str, Known | None]:
        connection = await self._cluster.broker(node)
        request = DescribeTransactionsRequest(transactional_ids=names)
        response: DescribeTransactionsResponse = await connection.request(request, timeout_s=self._cluster.timeout_s)
        found: dict[str, Known | None] = {}
        for one in response.transaction_states:
            code = ErrorCode(one.error_code)
            if code in COORDINATOR_TRANSIENT:
                self._coordinators.pop(one.transactional_id, None)
            elif code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                found[one.transactional_id] = None
            elif code is not ErrorCode.NONE:
                raise KafkaError(code, f"transactional id {one.transactional_id}")
            else:
                timeout_ms = one.transaction_timeout_ms
                found[one.transactional_id] = Known(
                    one.transaction_state,
                    one.producer_id,
                    one.producer_epoch,
                    one.transaction_start_time_ms,
                    None if timeout_ms == NO_TIMEOUT_MS else timeout_ms,
                )
        return found

    async def _find_coordinators(self, names: Iterable[str]) -> None:
        missing = sorted({name for name in names if name not in self._coordinators})
        if not missing:
            return
        found = await find_coordinators(self._cluster, missing, TRANSACTION)
        self._coordinators |= found

        async def find(name: str) -> None:
            self._coordinators[name], _ = await find_coordinator(self._cluster, name, TRANSACTION)

        await _gather(find(name) for name in missing if name not in found)

    async def fence(self, names: Iterable[str]) -> None:
        """Fence the ids; failures are only logged, because the batch is already written."""

        async def fence_one(name: str) -> None:
            request = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=FENCED_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
            )
            try:
                coordinator = CoordinatorConnection(self._cluster, name, TRANSACTION)
                await init_producer_id(coordinator, request, timeout_s=FENCE_S_MAX)
            except HeadraceError as error:
                _LOG.warning(
                    "%s has an open transaction that could not be fenced; its timeout will abort it: %s", name, error
                )

        await _gather(fence_one(name) for name in names)


async def _gather(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await everything, at most AT_ONCE_MAX at a time; all of it has finished or failed when this returns or raises."""
    some = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(awaitable: Awaitable[T]) -> T:
        async with some:
            return await awaitable

    results = await asyncio.gather(*map(one, work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def retry_until_timeout(
    cluster: Cluster, attempt: Callable[[], Awaitable[T]], before_retry: Callable[[], object] | None = None
) -> T:
    """Retry transient errors within the cluster's timeout."""
    return await Retry(_POLICY, cluster.timeout_s).run(attempt, before_retry)
