"""Encoded request frames, the same bytes for every system: Produce v9 and Fetch v12, which use topic names."""

from __future__ import annotations

import string
import time
from dataclasses import dataclass
from functools import cache
from random import Random

from bench.systems.requests import CLIENT_ID
from headrace.client.wire.frames import encode_request
from headrace.protocol.compiler import codec
from headrace.protocol.framing import SIZE
from headrace.protocol.headers import response_header
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec

PRODUCE_VERSION = 9
FETCH_VERSION = 12
ACKS, ALL_ACKS = 1, -1
READ_COMMITTED = 1
KIB = 1024
MESSAGE_BYTES_MAX = 1_048_588  # Kafka's default for message.max.bytes
RECORD_OVERHEAD_MAX = 24  # bytes of a record besides its value
# Fetch responses may differ by this much besides the records: a length of one to four bytes, absent tags.
FETCH_RESPONSE_SLACK_BYTES = 16
SEED = 20_040_229
WORDS = 512  # number of distinct words in compressible values
WORD_LETTERS = (3, 12)


@dataclass(frozen=True, slots=True)
class Batch:
    data: bytes
    records: int
    plain_size: int  # size before compression

    @property
    def size(self) -> int:
        return len(self.data)


@cache
def make_batch(
    records: int,
    value_bytes: int,
    producer_id: int = NO_PRODUCER_ID,
    epoch: int = NO_PRODUCER_EPOCH,
    codec: Codec = Codec.NONE,
    *,
    transactional: bool = False,
) -> Batch:
    random = Random(SEED)
    builder = BatchBuilder()
    timestamp = int(time.time() * 1000)
    for value in random_values(random, records, value_bytes, codec):
        builder.append(timestamp, None, value)
    sequence = NO_SEQUENCE if producer_id == NO_PRODUCER_ID else 0
    plain_size = builder.size
    data = builder.build(
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    assert len(data) <= MESSAGE_BYTES_MAX
    return Batch(bytes(data), records, plain_size)


def random_values(random: Random, count: int, size: int, codec: Codec) -> list[bytes]:
    """Return random bytes, which no system can exploit, or random words if they are to be compressed."""
    if codec == Codec.NONE:
        return [random.randbytes(size) for _ in range(count)]
    words = _words(random)
    return [_text(random, words, size) for _ in range(count)]


def _words(random: Random) -> list[bytes]:
    letters = string.ascii_lowercase.encode()
    return [bytes(random.choices(letters, k=random.randint(*WORD_LETTERS))) for _ in range(WORDS)]


def _text(random: Random, words: list[bytes], size: int) -> bytes:
    return b" ".join(random.choices(words, k=size // WORD_LETTERS[0] + 1))[:size]  # enough even if all words are short


def records_that_fit(batch_bytes: int, value_bytes: int) -> int:
    return batch_bytes // (value_bytes + RECORD_OVERHEAD_MAX)


def produce_frame(topic: str, partition: int, batch: Batch, acks: int = ACKS) -> bytes:
    data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(batch.data))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    return b"".join(encode_request(request, PRODUCE_VERSION, 0, CLIENT_ID))


def produce_response(topic: str, error_code: int = 0) -> bytes:
    response = ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic, partition_responses=[ProduceResponse.PartitionProduceResponse(error_code=error_code)]
            )
        ]
    )
    body = response_header(0, PRODUCE_VERSION, 0) + codec(ProduceResponse, PRODUCE_VERSION).encode(response)
    return SIZE.pack(len(body)) + body


def fetch_frame(topic: str, partition: int, offset: int, bytes_max: int, *, committed: bool = False) -> bytes:
    wanted = FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=READ_COMMITTED if committed else 0,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    return b"".join(encode_request(request, FETCH_VERSION, 0, CLIENT_ID))


def fetch_response(
    topic: str, error_code: int = 0, partition_error_code: int = 0, aborted_transactions: int = 0
) -> bytes:
    """Return an encoded Fetch response without records."""
    aborted = [FetchResponse.AbortedTransaction(0, 0)] * aborted_transactions
    data = FetchResponse.PartitionData(
        error_code=partition_error_code, aborted_transactions=aborted or None, records=b""
    )
    topics = [FetchResponse.FetchableTopicResponse(topic=topic, partitions=[data])]
    response = FetchResponse(error_code=error_code, responses=topics)
    body = response_header(1, FETCH_VERSION, 0) + codec(FetchResponse, FETCH_VERSION).encode(response)
    return SIZE.pack(len(body)) + body


def difference(one: bytes, other: bytes) -> int:
    """Return the position of the error code, given two responses that differ only in it."""
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


ERROR_MARK = 0x7F7F  # an error code that differs from 0 in its first byte


def produce_error_at(topic: str) -> tuple[int, ...]:
    return (difference(produce_response(topic), produce_response(topic, ERROR_MARK)),)


def fetch_error_at(topic: str) -> tuple[int, ...]:
    plain = fetch_response(topic)
    return (
        difference(plain, fetch_response(topic, error_code=ERROR_MARK)),
        difference(plain, fetch_response(topic, partition_error_code=ERROR_MARK)),
    )
