"""Executes the commands of the commit state machine (`sink_commits`) with requests of Kafka's protocol, none of them ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.producer.transaction_requests import (
    InvalidTransactionState,
    ProducerFenced,
    TransactionIdentity,
    add_partitions,
    end_transaction,
    init_producer_id,
    is_implicit,
)
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import TRANSACTION, CoordinatorConnection
from headrace.pipelines.background import background
from headrace.pipelines.sink import commands, commits
from headrace.pipelines.sink.commands import Batch, Conversation, Decision, Driver, SinkError
from headrace.pipelines.sink.options import SinkOptions
from headrace.pipelines.sink.progress import FINISHED, decision_value, finished_value, progress_log
from headrace.pipelines.sink.task_writer import driver_id
from headrace.pipelines.sink.transactions import TaskTransactions, retry_until_timeout
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec

T = TypeVar("T")

DRIVER_TIMEOUT_MS = 60_000  # timeout of the driver's own transaction, which takes two requests
TRIES = 3  # attempts at a commit if another driver takes over the sink meanwhile
PRODUCE_BY_ID_VERSION_MIN, PRODUCE_EXPLICIT_VERSION_MAX = 13, 11
COMPRESSED_BYTES_MIN = 4096
# Errors of a batch in the driver's transaction: another driver has taken over, or the transaction has timed out.
_NOT_THE_DRIVER = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)

_LOG = logging.getLogger("headrace.spark")


class DriverFenced(SinkError):
    """Another driver has taken over the sink; whether the batch was decided is unknown."""


class CommitExecutor:
    """Executes commands for one sink.

    Errors of brokers and connections propagate unchanged; the caller must then assume that the outcome is unknown.
    """

    def __init__(self, cluster: Cluster, options: SinkOptions, sink: str) -> None:
        self._cluster = cluster
        self._options = options
        self._sink = sink
        self._driver_id = driver_id(options.prefix, sink)
        self._log = progress_log(cluster, options.progress_topic)
        self._coordinator = CoordinatorConnection(cluster, self._driver_id, TRANSACTION)
        self._tasks = TaskTransactions(cluster, f"{self._driver_id}.")
        self._is_there = False

    async def carry_out(self, conversation: Conversation[T]) -> T:
        try:
            command = next(conversation)
            while True:
                command = conversation.send(await self.do(command))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            conversation.close()

    async def do(self, command: Any) -> Any:
        match command:
            case commands.TakeOver():
                return await self._take_over()
            case commands.ReadProgress():
                await self._make_log()
                return await self._log.read(self._sink)
            case commands.ListOpen():
                return await self._tasks.list_open()
            case commands.Describe(transactions):
                known = await self._tasks.describe([one.transactional_id for one in transactions])
                return _now_ms(), [known[one.transactional_id] for one in transactions]
            case commands.Record(driver, decision):
                await self._record(driver, decision)
            case commands.Settle(driver):
                await self._settle(driver)
            case commands.End(transactions, commit):
                return await self._tasks.end(transactions, commit=commit)
            case commands.MarkFinished(decision):
                await self._append(self._sink + FINISHED, finished_value(decision), None)
            case commands.Fence(transactional_ids):
                await self._tasks.fence(transactional_ids)
            case commands.Warn(text):
                _LOG.warning("%s: %s", self._sink, text)
            case _:
                raise AssertionError(command)
        return None

    # --- the driver's own transaction, and the decision in it

    async def _take_over(self) -> Driver:
        request = InitProducerIdRequest(
            transactional_id=self._driver_id,
            transaction_timeout_ms=DRIVER_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        response, _ = await init_producer_id(self._coordinator, request, timeout_s=self._cluster.timeout_s)
        return Driver(response.producer_id, response.producer_epoch)

    async def _make_log(self) -> None:
        if not self._is_there:
            await self._try(lambda: self._log.make(self._options.progress_replication))
            self._is_there = True

    async def _record(self, driver: Driver, decision: Decision) -> None:
        identity = TransactionIdentity(self._driver_id, *driver)
        timeout_s = self._cluster.timeout_s
        try:
            if not is_implicit(await self._try(self._coordinator.connect)):
                await add_partitions(self._coordinator, identity, [self._log.partition], timeout_s=timeout_s)
            await self._append(self._sink, decision_value(decision), identity)
        except (ProducerFenced, InvalidTransactionState) as error:
            raise DriverFenced(f"batch {decision.batch} was not decided: {error}") from error
        except KafkaError as error:
            if error.code not in _NOT_THE_DRIVER:
                raise
            raise DriverFenced(f"batch {decision.batch} was not decided: {error}") from error

    async def _settle(self, driver: Driver) -> None:
        identity = TransactionIdentity(self._driver_id, *driver)
        try:
            await end_transaction(
                self._cluster,
                identity,
                commit=True,
                timeout_s=self._cluster.timeout_s,
                coordinator=self._coordinator,
            )
        except (ProducerFenced, InvalidTransactionState) as error:
            raise DriverFenced(f"whether the batch was decided is for its successor to see: {error}") from error

    async def _append(self, key: str, value: bytes, identity: TransactionIdentity | None) -> None:
        """Append one record to the progress topic.

        In a transaction it is the first and only batch of its epoch here, so brokers recognize a repeated request.
        """
        records = BatchBuilder()
        records.append(_now_ms(), key.encode(), value)
        batch = bytes(
            records.build(
                codec=Codec.GZIP if len(value) >= COMPRESSED_BYTES_MIN else Codec.NONE,
                producer_id=NO_PRODUCER_ID if identity is None else identity.producer_id,
                producer_epoch=NO_PRODUCER_EPOCH if identity is None else identity.producer_epoch,
                base_sequence=NO_SEQUENCE if identity is None else 0,
                transactional=identity is not None,
            )
        )
        await self._try(lambda: self._produce(batch, identity))

    async def _produce(self, batch: bytes, identity: TransactionIdentity | None) -> None:
        partition = self._log.partition
        connection = await self._cluster.leader(partition)
        implicit = identity is None or is_implicit(connection)
        version = connection.version_for(ProduceRequest, None if implicit else PRODUCE_EXPLICIT_VERSION_MAX)
        topic = ProduceRequest.TopicProduceData(
            name=partition.topic,
            partition_data=[ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)],
        )
        if version >= PRODUCE_BY_ID_VERSION_MIN:
            topic.topic_id = self._cluster.topic_id(partition.topic)
        request = ProduceRequest(
            transactional_id=None if identity is None else identity.transactional_id,
            acks=-1,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=[topic],
        )
        response: ProduceResponse = await connection.request(
            request, version=version, timeout_s=self._cluster.timeout_s
        )
        partition_response = response.responses[0].partition_responses[0]
        code = ErrorCode(partition_response.error_code)
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise KafkaError(code, partition_response.error_message or str(partition))

    async def _try(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await retry_until_timeout(
            self._cluster, attempt, lambda: self._cluster.forget_leader(self._log.partition)
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def commit_executor(options: SinkOptions, sink: str) -> CommitExecutor:
    return CommitExecutor(await background().cluster(options.client), options, sink)


async def commit_batch(options: SinkOptions, sink: str, batch: Batch) -> bool:
    """Return False if the batch was already written.

    Raise SinkError, or the error of the broker or connection, if it is not certain to be written.
    """
    executor = await commit_executor(options, sink)
    for left in reversed(range(TRIES)):
        try:
            return await executor.carry_out(commits.commit(batch, options.choices, _now_ms()))
        except DriverFenced:
            if not left or batch.driver is not None:
                raise
    raise AssertionError("the last try returns or raises")


async def commit_nameless(options: SinkOptions, sink: str, batch: Batch) -> None:
    executor = await commit_executor(options, sink)
    await executor.carry_out(commits.commit_nameless(batch))


async def abort_batch(options: SinkOptions, sink: str, batch: Batch, *, may_be_decided: bool) -> None:
    executor = await commit_executor(options, sink)
    await executor.carry_out(commits.abort(batch, may_be_decided=may_be_decided))
