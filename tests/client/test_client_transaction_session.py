"""Transactions of a producer with a scripted coordinator: what is retried, what must be aborted, what is fatal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.membership import CommittedOffset, GroupMetadata
from headrace.client.producer.batches import ProducerBatch
from headrace.client.producer.options import PRODUCER_OPTIONS, producer_settings
from headrace.client.producer.sequences import Sequences
from headrace.client.producer.transaction_requests import (
    AbortableTransactionError,
    FatalTransactionError,
    InvalidTransactionState,
    ProducerFenced,
    TransactionIdentity,
    end_transaction,
)
from headrace.client.producer.transaction_session import TransactionSession, TransactionState
from headrace.client.wire.connection import Disconnected, NoResponse
from headrace.client.wire.opening import client_values
from headrace.protocol.declare import Struct
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

HERE = TopicPartition("t", 0)
NONE = ErrorCode.NONE


class Coordinator:
    """All brokers in one.

    `script` has error codes or exceptions for the requests of each type, in order; later requests succeed.
    """

    timeout_s = 5.0
    random = Random(1)

    def __init__(self, *, version: int = 2, two_phase: bool = False) -> None:
        self.features = {"transaction.version": version}
        self.two_phase = two_phase
        self.script: dict[str, list[Any]] = {}
        self.requests: list[tuple[str, int | None]] = []
        self.epoch = 0
        self.ongoing = (-1, -1)

    # --- interface of a cluster and of a connection

    async def any_broker(self) -> Coordinator:
        return self

    async def broker(self, node_id: int, purpose: str = "") -> Coordinator:
        return self

    async def refresh(self, topics: Sequence[Any]) -> None:
        pass

    def version_for(self, message_type: type[Struct], at_most: int | None = None, *, unstable: bool = False) -> int:
        if message_type is InitProducerIdRequest:
            return 6 if unstable and self.two_phase else 5
        if message_type is FindCoordinatorRequest:
            return 6
        newest = {EndTxnRequest: 5, TxnOffsetCommitRequest: 5, AddPartitionsToTxnRequest: 5}.get(message_type, 13)
        return newest if at_most is None else min(newest, at_most)

    async def request(self, message: Struct, *, version: int | None = None, timeout_s: Any = None) -> Any:
        if isinstance(message, FindCoordinatorRequest):
            coordinator = FindCoordinatorResponse.Coordinator(key=message.coordinator_keys[0], node_id=1)
            return FindCoordinatorResponse(coordinators=[coordinator])
        name = type(message).__name__.removesuffix("Request")
        self.requests.append((name, version))
        waiting = self.script.get(name, [])
        fault = waiting.pop(0) if waiting else NONE
        if isinstance(fault, Exception):
            raise fault
        return self.response(message, version, fault)

    def response(self, message: Struct, version: int | None, code: ErrorCode) -> Any:
        if isinstance(message, InitProducerIdRequest):
            if code is NONE:
                self.epoch = self.epoch + 1 if message.producer_id >= 0 or self.epoch else 1
            pair = self.ongoing if message.keep_prepared_txn else (-1, -1)
            return InitProducerIdResponse(
                error_code=code,
                producer_id=7,
                producer_epoch=self.epoch,
                ongoing_txn_producer_id=pair[0],
                ongoing_txn_producer_epoch=pair[1],
            )
        if isinstance(message, EndTxnRequest):
            if version < 5 or code is not NONE:
                return EndTxnResponse(error_code=code)
            self.epoch = message.producer_epoch + 1
            return EndTxnResponse(error_code=code, producer_id=7, producer_epoch=self.epoch)
        if isinstance(message, AddOffsetsToTxnRequest):
            return AddOffsetsToTxnResponse(error_code=code)
        if isinstance(message, TxnOffsetCommitRequest):
            partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(error_code=code)
            return TxnOffsetCommitResponse(
                topics=[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name="t", partitions=[partition])]
            )
        assert isinstance(message, AddPartitionsToTxnRequest)
        result = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(partition_error_code=code)
        topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name="t", results_by_partition=[result])
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])

    def names(self) -> list[str]:
        return [name for name, _ in self.requests]


class Outbox:
    def __init__(self) -> None:
        self.given_up: list[KafkaError] = []
        self.on_flush: Callable[[], None] = lambda: None

    def wake(self) -> None:
        pass

    async def flush(self) -> None:
        self.on_flush()

    async def give_up_all(self, error: KafkaError) -> None:
        self.given_up.append(error)


def session(coordinator: Coordinator, **options: Any) -> TransactionSession:
    given = {"transactional.id": "x", "max.block.ms": 500} | {
        name.replace("_", "."): value for name, value in options.items()
    }
    settings = producer_settings(client_values(given, PRODUCER_OPTIONS), given)
    made = TransactionSession(settings, coordinator, Sequences(transactional=True))  # type: ignore[arg-type]
    made.outbox = Outbox()  # type: ignore[assignment]
    return made


def run(work: Callable[..., Any], coordinator: Coordinator | None = None, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            used = coordinator or Coordinator()
            await work(session(used, **options), used)

    asyncio.run(main())


async def begun(transaction: TransactionSession) -> None:
    await transaction.init()
    await transaction.begin()


async def admitted(transaction: TransactionSession, partition: TopicPartition = HERE) -> None:
    """Wait until the transaction admits a batch, as the sender does."""
    for _ in range(100):
        if transaction.admits(ProducerBatch(partition, 0.0, 1.0)):
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never admitted")


def test_version_2_adds_no_partitions_or_groups_explicitly() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        await transaction.send_offsets({HERE: CommittedOffset(3)}, GroupMetadata("g"))
        await transaction.commit()
        assert coordinator.requests == [("InitProducerId", 5), ("TxnOffsetCommit", 5), ("EndTxn", 5)]
        assert transaction.identity == TransactionIdentity("x", 7, 2)
        assert transaction.state is TransactionState.READY

    run(work)


def test_version_1_adds_partitions_and_groups_first() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        await admitted(transaction)
        await transaction.send_offsets({HERE: CommittedOffset(3)}, GroupMetadata("g"))
        await transaction.commit()
        assert coordinator.requests == [
            ("InitProducerId", 5),
            ("AddPartitionsToTxn", 3),
            ("AddOffsetsToTxn", None),
            ("TxnOffsetCommit", 4),
            ("EndTxn", 4),
        ]
        assert transaction.identity.producer_epoch == 1  # unchanged
        await transaction.begin()
        await admitted(transaction)
        assert coordinator.names()[-1] == "AddPartitionsToTxn"

    run(work, Coordinator(version=1))


def test_retriable_errors_of_init_producer_id_and_end_txn_are_retried() -> None:
    passing = [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        Disconnected("gone"),
        NoResponse("silence"),
    ]

    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        coordinator.script = {"InitProducerId": list(passing), "EndTxn": list(passing)}
        await begun(transaction)
        await admitted(transaction)
        await transaction.commit()
        assert coordinator.names() == ["InitProducerId"] * 5 + ["EndTxn"] * 5

    run(work, max_block_ms=5000)


def test_a_commit_with_unknown_outcome_can_only_be_retried() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        coordinator.script = {"EndTxn": [Disconnected("gone")] * 3}
        with pytest.raises(Disconnected):
            await transaction.commit()
        assert transaction.state is TransactionState.COMMITTING
        with pytest.raises(KafkaError, match="committing"):
            await transaction.abort()
        await transaction.commit()
        assert transaction.state is TransactionState.READY

    run(work, max_block_ms=100)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (ErrorCode.INVALID_TXN_STATE, InvalidTransactionState),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, FatalTransactionError),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, FatalTransactionError),
    ],
)
def test_a_fatal_error_of_end_txn_fails_every_later_operation(
    code: ErrorCode, kind: type[FatalTransactionError]
) -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        coordinator.script = {"EndTxn": [code]}
        with pytest.raises(kind) as caught:
            await transaction.commit()
        assert caught.value.code is code
        for act in (transaction.begin, transaction.commit, transaction.abort):
            with pytest.raises(kind):
                await act()

    run(work)


def test_the_session_recovers_from_an_abortable_error_by_aborting() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        coordinator.script = {
            "EndTxn": [ErrorCode.TRANSACTION_ABORTABLE],
            "TxnOffsetCommit": [ErrorCode.ILLEGAL_GENERATION],
        }
        with pytest.raises(AbortableTransactionError):
            await transaction.commit()
        await transaction.abort()
        await transaction.begin()
        with pytest.raises(AbortableTransactionError):
            await transaction.send_offsets({HERE: CommittedOffset(3)}, GroupMetadata("g"))
        with pytest.raises(AbortableTransactionError, match="must be aborted, because of ILLEGAL_GENERATION"):
            await transaction.commit()
        await transaction.abort()
        assert len(transaction.outbox.given_up) == 2  # type: ignore[attr-defined]

    run(work)


def test_a_batch_that_fails_during_the_flush_stops_the_commit() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        error = KafkaError(ErrorCode.INVALID_RECORD, "t-0")
        transaction.outbox.on_flush = lambda: transaction.batch_failed(error, in_doubt=True)  # type: ignore[attr-defined]
        with pytest.raises(AbortableTransactionError, match="INVALID_RECORD"):
            await transaction.commit()
        assert "EndTxn" not in coordinator.names() and not transaction.admits(ProducerBatch(HERE, 0.0, 1.0))
        await transaction.abort()
        assert coordinator.names()[-1] == "EndTxn" and transaction.error is None

    run(work)


def test_version_1_requests_a_new_epoch_after_a_batch_with_unknown_outcome() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        transaction.batch_failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT), in_doubt=True)
        await transaction.abort()
        assert coordinator.names()[-2:] == ["EndTxn", "InitProducerId"] and transaction.identity.producer_epoch == 2
        await transaction.begin()
        await transaction.abort()  # nothing was begun at a broker, so nothing is sent
        assert coordinator.names()[-2:] == ["EndTxn", "InitProducerId"]

    run(work, Coordinator(version=1))


def test_a_partition_that_cannot_be_added_fails_the_transaction() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        coordinator.script = {
            "AddPartitionsToTxn": [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        }
        await begun(transaction)
        assert not transaction.admits(ProducerBatch(HERE, 0.0, 1.0))
        while transaction.state is not TransactionState.FAILED:
            await asyncio.sleep(0.001)
        with pytest.raises(AbortableTransactionError, match="TOPIC_AUTHORIZATION_FAILED"):
            transaction.check_send()
        await transaction.abort()
        assert coordinator.names()[-1] == "EndTxn"

    run(work, Coordinator(version=1))


def test_a_batch_refused_for_its_epoch_is_abortable_but_for_its_producer_id_fatal() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        transaction.batch_failed(KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH), in_doubt=True)
        assert transaction.state is TransactionState.FAILED
        transaction.batch_failed(KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING), in_doubt=True)
        assert transaction.state is TransactionState.FENCED

    run(work)


def test_operations_in_the_wrong_state_raise() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        for act in (transaction.begin, transaction.commit, transaction.abort, transaction.prepare):
            with pytest.raises(KafkaError, match="uninitialized"):
                await act()
        await begun(transaction)
        for act in (transaction.begin, transaction.init):
            with pytest.raises(KafkaError, match="open"):
                await act()
        await transaction.commit()
        assert coordinator.names() == ["InitProducerId"]  # the coordinator never learns of an empty transaction

    run(work)


def test_a_prepared_transaction_is_kept_until_it_is_completed() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        await begun(transaction)
        await admitted(transaction)
        prepared = await transaction.prepare()
        assert transaction.state is TransactionState.PREPARED
        for decided in (prepared, prepared._replace(producer_epoch=99)):
            coordinator.ongoing = prepared[1:]
            again = session(coordinator, transaction_two_phase_commit_enable=True)
            assert await again.init(keep_prepared=True) == prepared
            with pytest.raises(KafkaError, match="prepared"):
                again.check_send()
            await again.complete(decided)
            assert coordinator.requests[-1] == ("EndTxn", 5) and again.state is TransactionState.READY
        coordinator.ongoing = (-1, -1)
        assert await session(coordinator, transaction_two_phase_commit_enable=True).init(keep_prepared=True) is None

    run(work, Coordinator(two_phase=True), transaction_two_phase_commit_enable=True)


def test_two_phase_commit_is_refused_without_broker_support() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        with pytest.raises(FatalTransactionError, match=r"two\.phase\.commit"):
            await transaction.init()
        with pytest.raises(KafkaError, match="keep_prepared"):
            await session(coordinator).init(keep_prepared=True)

    run(work, transaction_two_phase_commit_enable=True)


def test_end_transaction_needs_no_session() -> None:
    async def work(transaction: TransactionSession, coordinator: Coordinator) -> None:
        identity = TransactionIdentity("x", 7, 4)
        assert await end_transaction(coordinator, identity, commit=True) == ("x", 7, 5)  # type: ignore[arg-type]
        assert await end_transaction(coordinator, identity, commit=False, implicit=False) == identity  # type: ignore[arg-type]
        coordinator.script = {"EndTxn": [ErrorCode.CONCURRENT_TRANSACTIONS] * 100}
        with pytest.raises(KafkaError, match="CONCURRENT_TRANSACTIONS: commit of x"):
            await end_transaction(coordinator, identity, commit=True, timeout_s=0.1)  # type: ignore[arg-type]

    run(work)
