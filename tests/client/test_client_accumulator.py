"""Queues of batches: which are sent when and in what order; no record is lost, duplicated or overtaken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.batches import Entry, ProducerBatch, ProducerIdentity, record_bytes, split
from headrace.records.batch import HEADER_BYTES, read_header
from headrace.records.compression import Codec
from headrace.records.record import decode_records

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
IDENTITY = ProducerIdentity(7, 0)


class Deliveries:
    """Records what its waiter learns about each record: the offset, or an error."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[TopicPartition, int, int] | KafkaError] = []

    def delivered(self, partition: TopicPartition, base_offset: int, count: int, timestamp_ms: int) -> None:
        self.outcomes += [(partition, base_offset + index, timestamp_ms) for index in range(count)]

    def offsets(self) -> list[tuple[TopicPartition, int, int]]:
        return [one for one in self.outcomes if not isinstance(one, KafkaError)]

    def refused(self, error: KafkaError, count: int) -> None:
        self.outcomes += [error] * count


def make(batch_bytes: int = 1000, linger_s: float = 5.0, delivery_s: float = 120.0) -> Accumulator:
    return Accumulator(batch_bytes=batch_bytes, linger_s=linger_s, delivery_s=delivery_s)


def put(
    accumulator: Accumulator,
    value: bytes = b"v",
    partition: TopicPartition = HERE,
    now: float = 0.0,
    deliveries: Deliveries | None = None,
) -> bool:
    size = record_bytes(None, value, ())
    return accumulator.append(partition, 1, None, value, (), deliveries or Deliveries(), size=size, now=now)  # type: ignore[arg-type]


def drain(
    accumulator: Accumulator,
    *partitions: TopicPartition,
    bytes_max: int = 1 << 20,
    admits: Callable[..., Any] = lambda batch: True,
) -> list[ProducerBatch]:
    batches = accumulator.drain(partitions or (HERE,), bytes_max=bytes_max, admits=admits)
    for batch in batches:
        batch.build(Codec.NONE, None, False)
    return batches


def values(*batches: ProducerBatch) -> list[bytes]:
    return [record.value for batch in batches for record in decode_records(batch.encoded)]


def test_a_batch_is_ready_once_it_has_lingered_or_hurry_is_set() -> None:
    accumulator = make()
    assert put(accumulator, now=10.0)  # a new batch: the sender must know when to look
    assert not put(accumulator, now=11.0)
    assert accumulator.ready_at(HERE) == 15.0 and accumulator.next_deadline() == 130.0
    accumulator.hurry = True
    assert accumulator.ready_at(HERE) == 10.0


def test_a_full_batch_is_ready_at_once_and_the_next_record_starts_another() -> None:
    accumulator = make(batch_bytes=HEADER_BYTES + 100)
    put(accumulator, b"a" * 60)
    assert accumulator.ready_at(HERE) == 5.0
    assert put(accumulator, b"b" * 60)
    assert accumulator.ready_at(HERE) == 0.0 and accumulator.queue_lengths("t", 2) == [2, 0]
    (first,) = drain(accumulator)
    assert values(first) == [b"a" * 60] and accumulator.ready_at(HERE) == 5.0
    assert not accumulator.has_closed(HERE) and accumulator.has_closed(THERE)


def test_a_record_larger_than_batch_bytes_gets_its_own_batch() -> None:
    accumulator = make(batch_bytes=100)
    put(accumulator, b"a")
    put(accumulator, b"b" * 500)
    put(accumulator, b"c")
    assert [values(*drain(accumulator)) for _ in range(3)] == [[b"a"], [b"b" * 500], [b"c"]]


def test_a_request_takes_one_batch_per_partition_up_to_its_size_limit() -> None:
    accumulator = make(batch_bytes=200)
    for partition in (HERE, THERE):
        for value in (b"1" * 100, b"2" * 100):
            put(accumulator, value, partition)
    assert [batch.partition for batch in drain(accumulator, THERE, HERE)] == [THERE, HERE]
    assert [batch.partition for batch in drain(accumulator, THERE, HERE, bytes_max=200)] == [THERE]
    assert not drain(accumulator, HERE, admits=lambda batch: False)
    assert [batch.partition for batch in drain(accumulator, THERE, HERE, bytes_max=10)] == [HERE]  # at least one batch
    assert not accumulator.partitions() and len(accumulator.incomplete) == 4


def test_requeued_batches_are_ordered_by_sequence() -> None:
    accumulator = make(batch_bytes=1)
    for number in range(4):
        put(accumulator, b"%d" % number)
    sent = [drain(accumulator)[0] for _ in range(3)]
    for sequence, batch in zip((0x7FFFFFFE, 0x7FFFFFFF, 0), sent, strict=True):
        batch.identity, batch.base_sequence, batch.attempts = IDENTITY, sequence, 1
    for index in (2, 0, 1):
        accumulator.put_back(sent[index])
    assert accumulator.ready_at(HERE) == sent[0].retry_at
    assert [values(*drain(accumulator)) for _ in range(4)] == [[b"0"], [b"1"], [b"2"], [b"3"]]


def test_batches_past_the_delivery_timeout_are_taken_from_the_queue() -> None:
    accumulator = make(batch_bytes=1, delivery_s=10.0)
    for now in (0.0, 3.0, 6.0):
        put(accumulator, b"%d" % now, now=now)
    put(accumulator, partition=THERE, now=9.0)
    assert [batch.created_at for batch in accumulator.take_expired(13.0)] == [0.0, 3.0]
    assert accumulator.has_up_to(2)
    for batch in list(accumulator.incomplete)[:2]:
        accumulator.complete(batch)
    assert not accumulator.has_up_to(2) and accumulator.has_up_to(3)
    assert len(accumulator.take_all("other")) == 0 and len(accumulator.take_all("t")) == 2


def test_appending_encoded_rows_closes_the_open_batch() -> None:
    accumulator = make()
    put(accumulator, b"a")
    whole = make()
    put(whole, b"b")
    put(whole, b"c")
    encoded = drain(whole)[0].encoded
    deliveries = Deliveries()
    accumulator.append_encoded(HERE, encoded, Entry(deliveries, 2, -1), plain_bytes=99, reserved=77, now=1.0)  # type: ignore[arg-type]
    put(accumulator, b"d")
    batches = [drain(accumulator)[0] for _ in range(3)]
    assert [values(batch) for batch in batches] == [[b"a"], [b"b", b"c"], [b"d"]]
    assert batches[1].reserved == 77
    batches[1].deliver(40, -1)
    assert deliveries.outcomes == [(HERE, 40, -1), (HERE, 41, -1)]


def test_deliveries_report_offsets_and_the_broker_or_record_timestamp() -> None:
    accumulator = make()
    deliveries = [Deliveries() for _ in range(3)]
    for one in deliveries:
        put(accumulator, deliveries=one)
    (batch,) = drain(accumulator)
    batch.deliver(10, 555)
    assert [one.outcomes for one in deliveries] == [[(HERE, 10, 555)], [(HERE, 11, 555)], [(HERE, 12, 555)]]
    unacknowledged = ProducerBatch(HERE, 0.0, 1.0)
    unacknowledged.append(77, None, b"", (), deliveries[0])  # type: ignore[arg-type]
    unacknowledged.deliver(-1, -1)
    assert deliveries[0].outcomes[-1] == (HERE, -1, 77)


def test_restamping_keeps_the_checksum_valid_and_does_not_change_bytes_in_flight() -> None:
    accumulator = make()
    put(accumulator)
    (batch,) = drain(accumulator)
    batch.identity, batch.base_sequence = IDENTITY, 5
    first = batch.stamp()
    header = read_header(first)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 5)
    assert len(list(decode_records(bytes(first)))) == 1  # the checksum is right
    batch.attempts = 1
    assert batch.stamp().obj is first.obj
    batch.identity = ProducerIdentity(7, 1)
    assert read_header(batch.stamp()).producer_epoch == 1 and read_header(first).producer_epoch == 0
    assert len(list(decode_records(bytes(batch.stamp())))) == 1


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=8).filter(lambda counts: sum(counts) > 1),
    codec=st.sampled_from(list(Codec)),
)
def test_split_batches_keep_records_sequences_and_deliveries(counts: list[int], codec: Codec) -> None:
    batch = ProducerBatch(HERE, 1.0, 9.0)
    deliveries = [Deliveries() for _ in counts]
    records: list[tuple[int, bytes, tuple[tuple[Any, Any], ...]]] = []
    for one, count in zip(deliveries, counts, strict=True):
        for _ in range(count):
            records.append((len(records), b"%d" % len(records), (("h", b"1"),)))
            batch.append(records[-1][0], b"k", records[-1][1], records[-1][2], one)  # type: ignore[arg-type]
        batch.entries[-count:] = [Entry(one, count, 3)]  # type: ignore[arg-type]
    batch.build(codec, None, True)
    batch.reserved, batch.number = 1001, 5
    batch.identity, batch.base_sequence = IDENTITY, 0x7FFFFFFF
    pieces = split(batch, codec, None, True)
    assert len(pieces) == 2 and sum(piece.reserved for piece in pieces) == 1001
    assert [piece.number for piece in pieces] == [5, 5]
    found: list[tuple[int, bytes, tuple[tuple[Any, Any], ...]]] = []
    sequence = 0x7FFFFFFF
    for piece in pieces:
        assert (piece.base_sequence, piece.created_at, piece.deadline) == (sequence, 1.0, 9.0)
        header = read_header(piece.stamp())
        assert header.is_transactional and header.codec == codec and header.record_count == piece.count
        found += [(record.timestamp, record.value, record.headers) for record in decode_records(piece.encoded)]
        sequence = sequence + piece.count & 0x7FFFFFFF
        piece.deliver(100 + len(found) - piece.count, -1)
    assert found == records
    offsets = [offset for one in deliveries for _, offset, _ in one.offsets()]
    assert offsets == list(range(100, 100 + len(records)))
    assert [len(one.outcomes) for one in deliveries] == counts


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_every_record_is_drained_once_and_in_order(data: st.DataObject) -> None:
    """The accumulator behaves like a list when batches are appended, sent, put back and split in any order."""
    accumulator = make(batch_bytes=data.draw(st.integers(1, 300)), linger_s=1.0)
    written: list[bytes] = []
    given_in = 0
    on_wire: list[ProducerBatch] = []
    sequence = 0
    for _ in range(data.draw(st.integers(1, 60))):
        act = data.draw(st.sampled_from(["append", "append", "send", "acknowledge", "lose", "split"]))
        if act == "append":
            put(accumulator, b"%d" % given_in)
            given_in += 1
        elif act == "send":
            for batch in drain(accumulator):
                if not batch.has_sequence:
                    batch.identity, batch.base_sequence = IDENTITY, sequence
                    sequence += batch.count
                batch.attempts += 1
                on_wire.append(batch)
        elif on_wire and act == "acknowledge" and on_wire[0].base_sequence == len(written):
            written += values(batch := on_wire.pop(0))
            accumulator.complete(batch)
        elif on_wire and act == "lose":
            while on_wire:  # a broken connection loses all requests
                accumulator.put_back(on_wire.pop(data.draw(st.integers(0, len(on_wire) - 1))))
        elif on_wire and act == "split" and on_wire[-1].count > 1:
            batch = on_wire.pop()
            accumulator.replace(batch, split(batch, Codec.NONE, None, False))
    for batch in reversed(on_wire):
        accumulator.put_back(batch)
    while batches := drain(accumulator):
        written += values(*batches)
        for batch in batches:
            accumulator.complete(batch)
    assert written == [b"%d" % number for number in range(given_in)] and not accumulator.incomplete
