"""Frames of a transactional producer, modified in place because its id and epoch change after every transaction.

They follow transaction version 2 (KIP-890): Produce v12 adds its partitions implicitly, EndTxn v5 returns the next
epoch, and sequence numbers restart with each epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import Struct
from typing import Any

from bench.errors import BenchFailed
from bench.groups.frames import FIND_COORDINATOR_VERSION, LOADING
from bench.load.frames import ERROR_MARK, Batch, difference
from bench.systems.requests import CLIENT_ID, READY_S_MAX, RETRY_S, Connection
from headrace.base.errors import ErrorCode
from headrace.client.wire.frames import encode_request
from headrace.protocol.compiler import codec
from headrace.protocol.framing import SIZE
from headrace.protocol.headers import response_header
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.batch import CRC_START, checksum

PRODUCE_VERSION = 12  # the last version with topic names
END_TXN_VERSION = 5
INIT_PRODUCER_ID_VERSION = 5
TRANSACTION_KEY = 1  # key type of FindCoordinator
ALL_ACKS = -1
TIMEOUT_MS = 60_000
# Retriable errors: the coordinator is not available yet, or the previous transaction is still completing.
RETRIABLE = frozenset({*LOADING, ErrorCode.CONCURRENT_TRANSACTIONS})
_CORRELATION_ID = Struct(">i")
_CORRELATION_AT = 8
_PRODUCER = Struct(">qh")
_PRODUCER_IN_BATCH = 43
_CRC = Struct(">I")
_CRC_IN_BATCH = CRC_START - _CRC.size
_MARK = 0x7F7F_7F7F_7F7F_7F7F  # a producer id that differs from 0 in its first byte


class ProduceFrame:
    """A Produce request with one batch for each of the first partitions of a topic."""

    def __init__(self, transactional_id: str, topic: str, batch: Batch, partitions: int) -> None:
        request = _produce_request(transactional_id, topic, batch.data, partitions)
        self.data = bytearray(b"".join(encode_request(request, PRODUCE_VERSION, 0, CLIENT_ID)))
        self._batch_bytes = batch.size
        self._batches: list[int] = []
        at = 0
        for _ in range(partitions):
            self._batches.append(at := self.data.index(batch.data, at))
            at += batch.size

    def set_producer(self, producer_id: int, epoch: int) -> None:
        """Set id and epoch in all batches; they are identical, so one checksum is enough."""
        data, crc = self.data, 0
        for at in self._batches:
            _PRODUCER.pack_into(data, at + _PRODUCER_IN_BATCH, producer_id, epoch)
            crc = crc or checksum(data, at, self._batch_bytes)
            _CRC.pack_into(data, at + _CRC_IN_BATCH, crc)

    def set_correlation_id(self, correlation_id: int) -> None:
        _CORRELATION_ID.pack_into(self.data, _CORRELATION_AT, correlation_id)


def _produce_request(transactional_id: str, topic: str, batch: bytes | bytearray, partitions: int) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=index, records=memoryview(batch)) for index in range(partitions)]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=ALL_ACKS,
        timeout_ms=TIMEOUT_MS,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
    )


class EndFrame:
    def __init__(self, transactional_id: str, *, commit: bool = True) -> None:
        def frame(producer_id: int) -> bytes:
            request = EndTxnRequest(transactional_id, producer_id, 0, commit)
            return b"".join(encode_request(request, END_TXN_VERSION, 0, CLIENT_ID))

        self.data = bytearray(frame(0))
        self._producer_at = difference(frame(0), frame(_MARK))

    def set_producer(self, producer_id: int, epoch: int) -> None:
        _PRODUCER.pack_into(self.data, self._producer_at, producer_id, epoch)

    def set_correlation_id(self, correlation_id: int) -> None:
        _CORRELATION_ID.pack_into(self.data, _CORRELATION_AT, correlation_id)


def produce_response(topic: str, partitions: int, failed: int | None = None) -> bytes:
    responses = [
        ProduceResponse.PartitionProduceResponse(index=index, error_code=ERROR_MARK if index == failed else 0)
        for index in range(partitions)
    ]
    response = ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name=topic, partition_responses=responses)]
    )
    return _frame(response, PRODUCE_VERSION)


def produce_errors_at(topic: str, partitions: int) -> list[int]:
    plain = produce_response(topic, partitions)
    return [difference(plain, produce_response(topic, partitions, index)) for index in range(partitions)]


def end_response(error_code: int = 0, producer_id: int = 0) -> bytes:
    return _frame(EndTxnResponse(error_code=error_code, producer_id=producer_id), END_TXN_VERSION)


def end_error_at() -> int:
    return difference(end_response(), end_response(ERROR_MARK))


def end_producer_at() -> int:
    """Return the position of the next id and epoch in the response."""
    return difference(end_response(), end_response(producer_id=_MARK))


def read_producer(response: bytes | bytearray, at: int) -> tuple[int, int]:
    producer_id, epoch = _PRODUCER.unpack_from(response, at)
    return producer_id, epoch


def _frame(response: Any, version: int) -> bytes:
    body = response_header(type(response).facts.api_key, version, 0) + codec(type(response), version).encode(response)
    return SIZE.pack(len(body)) + body


def init_producer(connection: Connection, transactional_id: str) -> tuple[int, int]:
    """Wait for the coordinator and return id and epoch; the first request creates `__transaction_state`."""
    deadline = time.monotonic() + READY_S_MAX
    find = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=[transactional_id])
    init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    while True:
        found = connection.request(find, FIND_COORDINATOR_VERSION).coordinators
        code = found[0].error_code if found else ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not code:
            response = connection.request(init, INIT_PRODUCER_ID_VERSION)
            code = response.error_code
            if not code:
                return int(response.producer_id), int(response.producer_epoch)
        if code not in RETRIABLE or time.monotonic() > deadline:
            raise BenchFailed(f"the transaction coordinator responded with error {code}")
        time.sleep(RETRY_S)


class BlockingProducer:
    """A blocking transactional producer for the set-up of a measurement."""

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self._connection = connection
        self._id = transactional_id
        self._producer = init_producer(connection, transactional_id)

    def write(self, topic: str, batch: Batch) -> None:
        """Write a batch to partition 0."""
        data = bytearray(batch.data)
        _PRODUCER.pack_into(data, _PRODUCER_IN_BATCH, *self._producer)
        _CRC.pack_into(data, _CRC_IN_BATCH, checksum(data, 0, len(data)))
        request = _produce_request(self._id, topic, data, 1)
        self._request(
            request, PRODUCE_VERSION, lambda response: response.responses[0].partition_responses[0].error_code
        )

    def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(self._id, *self._producer, commit)
        response = self._request(request, END_TXN_VERSION, lambda response: response.error_code)
        self._producer = (response.producer_id, response.producer_epoch)

    def _request(self, request: Any, version: int, code_of: Callable[[Any], int]) -> Any:
        deadline = time.monotonic() + READY_S_MAX
        while code := code_of(response := self._connection.request(request, version)):
            if code not in RETRIABLE or time.monotonic() > deadline:
                raise BenchFailed(f"{type(request).__name__} of {self._id} failed with error {code}")
            time.sleep(RETRY_S)
        return response
