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
    Coordinator,
    FatalTransactionError,
    InvalidTransactionState,
    ProducerFenced,
    TransactionError,
    TransactionIdentity,
    end_transaction,
    init_producer_id,
)
from headrace.client.wire.cluster import RETRY_BACKOFF_S, Cluster
from headrace.client.wire.connection import Disconnected, NoResponse
from headrace.client.wire.coordinator_lookup import MANY_KEYS_VERSION_MIN, TRANSACTION, find_coordinator
from headrace.client.wire.frames import UnexpectedResponse
from headrace.pipelines.sink.commands import ONGOING, UNTOLD, Ended, Known, TaskTransaction
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest

T = TypeVar("T")

AT_ONCE_MAX = 32  # concurrent requests
FENCE_S_MAX = 10.0
FENCED_TIMEOUT_MS = 60_000  # transaction timeout given to a producer that exists only to fence
_COORDINATOR_PASSING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)

_LOG = logging.getLogger("headrace.spark")


class TaskTransactions:
    """The transactions of one sink: those whose transactional ids have this prefix."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._coordinators: dict[str, int] = {}

    async def end(self, transactions: Sequence[TaskTransaction], *, commit: bool) -> list[Ended]:
        names = [one.transactional_id for one in transactions]
        await try_until_timeout(self._cluster, lambda: self._find_coordinators(names), self._coordinators.clear)
        return await _gather(self._end(one, commit) for one in transactions)

    async def _end(self, transaction: TaskTransaction, commit: bool) -> Ended:
        identity = TransactionIdentity(*transaction[:3])
        coordinator = _FoundCoordinator(self._cluster, identity.transactional_id, self._coordinators)
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
                wanted = TransactionFilter(states=[ONGOING], pattern=pattern)
                listed = await try_until_timeout(self._cluster, partial(list_transactions, self._cluster, wanted))
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
            await try_until_timeout(self._cluster, attempt, self._coordinators.clear)
        except UnexpectedResponse:
            return dict.fromkeys(names, Known(UNTOLD, -1, -1, -1, None))
        return found

    async def _describe_at(self, node: int, names: list[str]) -> dict[str, Known | None]:
        connection = await self._cluster.broker(node)
        request = DescribeTransactionsRequest(transactional_ids=names)
        response: DescribeTransactionsResponse = await connection.request(request, timeout_s=self._cluster.timeout_s)
        found: dict[str, Known | None] = {}
        for one in response.transaction_states:
            code = ErrorCode(one.error_code)
            if code in _COORDINATOR_PASSING:
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
        connection = await self._cluster.any_broker()
        version = connection.version_for(FindCoordinatorRequest)
        if version >= MANY_KEYS_VERSION_MIN:
            request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=missing)
            response: FindCoordinatorResponse = await connection.request(
                request, version=version, timeout_s=self._cluster.timeout_s
            )
            found = {one.key: one.node_id for one in response.coordinators if one.error_code == ErrorCode.NONE}
            self._coordinators |= found
            missing = [name for name in missing if name not in found]

        async def find(name: str) -> None:
            self._coordinators[name], _ = await find_coordinator(self._cluster, name, TRANSACTION)

        await _gather(find(name) for name in missing)

    async def fence(self, names: Iterable[str]) -> None:
        """Fence the ids; failures are only logged, because the batch is already written."""

        async def fence_one(name: str) -> None:
            request = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=FENCED_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
            )
            try:
                await init_producer_id(Coordinator(self._cluster, name), request, timeout_s=FENCE_S_MAX)
            except HeadraceError as error:
                _LOG.warning("%s has something open that is left to its timeout: %s", name, error)

        await _gather(fence_one(name) for name in names)


class _FoundCoordinator(Coordinator):
    """A coordinator that starts at the node found for it in a lookup of many ids."""

    def __init__(self, cluster: Cluster, name: str, found: dict[str, int]) -> None:
        super().__init__(cluster, name)
        self._node_id = found.get(name)


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


async def try_until_timeout(
    cluster: Cluster, attempt: Callable[[], Awaitable[T]], before_another: Callable[[], object] = lambda: None
) -> T:
    """Retry transient errors within the cluster's timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + cluster.timeout_s
    while True:
        try:
            return await attempt()
        except (Disconnected, NoResponse):
            if loop.time() + RETRY_BACKOFF_S > deadline:
                raise
        except KafkaError as error:
            if isinstance(error, TransactionError) or not error.retriable or loop.time() + RETRY_BACKOFF_S > deadline:
                raise
        before_another()
        await asyncio.sleep(RETRY_BACKOFF_S)
