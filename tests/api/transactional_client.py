"""A transactional producer and a read_committed reader built from bare requests; they also send what no client would."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.api.admin_client import Admin

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.consumer.decoding import FetchedBatches
from headrace.client.consumer.fetching import FetchedPartition
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import BatchBuilder

ATTEMPTS_MAX = 500
TRANSIENT_ERRORS = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
PRODUCE = 12  # version from which leaders add the partition to the transaction (KIP-890)
END, OLD_END = 5, 4
FETCH = 12
RECORDS_AT_ONCE = 1000


def retry_transient_errors(send_request: Callable[..., Any]) -> Any:
    """Retry while the previous transaction is still ending, as clients do, and return the response."""
    for _ in range(ATTEMPTS_MAX):
        answer = send_request()
        if answer.error_code not in TRANSIENT_ERRORS:
            return answer
    raise AssertionError("it takes too long")


def init(admin: Admin, name: str, version: int = 5, *, timeout: int = 60_000, **fields: Any) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout, **fields)
    return retry_transient_errors(lambda: admin.send_request(request, version))


class RawProducer:
    def __init__(self, admin: Admin, name: str, version: int = 5, **fields: Any) -> None:
        self.admin, self.name = admin, name
        made = init(admin, name, version, **fields)
        assert made.error_code == ErrorCode.NONE
        self.id, self.epoch = made.producer_id, made.producer_epoch
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def identity(self) -> tuple[int, int]:
        return self.id, self.epoch

    def send(
        self,
        topic: str,
        index: int,
        *values: bytes,
        sequence: int | None = None,
        identity: tuple[int, int] | None = None,
    ) -> tuple[ErrorCode, int]:
        """Send a batch and return its error code and base offset; an explicit identity or sequence is sent unchanged."""
        producer_id, epoch = identity or self.identity
        if sequence is None:
            sequence = self.sequences.get((topic, index), 0)
            self.sequences[topic, index] = sequence + len(values)
        builder = BatchBuilder()
        for value in values:
            builder.append(time.time_ns() // 1_000_000, None, value)
        batch = builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        data = ProduceRequest.PartitionProduceData(index=index, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        for _ in range(ATTEMPTS_MAX):
            answer = self.admin.send_request(request, PRODUCE).responses[0].partition_responses[0]
            if answer.error_code not in TRANSIENT_ERRORS:
                break
        return ErrorCode(answer.error_code), answer.base_offset

    def send_end_txn(self, commit: bool, identity: tuple[int, int] | None = None, version: int = END) -> EndTxnResponse:
        producer_id, epoch = identity or self.identity
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        return retry_transient_errors(lambda: self.admin.send_request(request, version))

    def end(self, commit: bool) -> None:
        """End the transaction as a client does and adopt the identity for the next one."""
        answer = self.send_end_txn(commit)
        assert answer.error_code == ErrorCode.NONE
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()


def fetch(
    admin: Admin, topic: str, index: int = 0, offset: int = 0, *, committed: bool = True, max_bytes: int = 1 << 20
) -> FetchResponse.PartitionData:
    partition = FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_bytes=1 << 20,
        isolation_level=int(committed),
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    (data,) = admin.send_request(request, FETCH).responses[0].partitions
    assert data.error_code == ErrorCode.NONE
    return data


def read(admin: Admin, topic: str, index: int = 0, offset: int = 0, *, committed: bool = True) -> list[bytes]:
    """Return the values that a client would return to its user."""
    data = fetch(admin, topic, index, offset, committed=committed)
    fetched = FetchedPartition(
        TopicPartition(topic, index),
        offset,
        memoryview(data.records or b""),  # type: ignore[arg-type]
        data.high_watermark,
        data.last_stable_offset,
        data.log_start_offset,
        [(one.producer_id, one.first_offset) for one in data.aborted_transactions or []],
        ErrorCode.NONE,
    )
    batches = FetchedBatches(fetched)
    values: list[bytes] = []
    while records := batches.take_records(RECORDS_AT_ONCE):
        values += [record.value for record in records]
    return values


def read_stable(admin: Admin, topic: str, index: int = 0, offset: int = 0) -> list[bytes]:
    """Return the committed values once no transaction is open: markers are written after the response to EndTxn."""
    for _ in range(ATTEMPTS_MAX):
        data = fetch(admin, topic, index, offset)
        if data.last_stable_offset == data.high_watermark:
            return read(admin, topic, index, offset)
    raise AssertionError("something stays open")
