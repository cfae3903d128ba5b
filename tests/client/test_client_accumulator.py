"""Queues of batches: which are sent when and in what order; no record is lost, duplicated or overtaken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import TopicPartition
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.batches import Entry, ProducerBatch, ProducerIdentity, record_bytes, split
from headrace.records.batch import HEADER_BYTES, read_header
from headrace.records.compression import Codec
from headrace.records.record import decode_records

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
ME = ProducerIdentity(7, 0)


class Told:
    """Records what its waiter learns about each record: the offset, or an error."""

    def __init__(self):
        self.said = []

    def delivered(self, partition, base_offset, count, timestamp_ms):
        self.said += [(partition, base_offset + index, timestamp_ms) for index in range(count)]

    def refused(self, error, count):
        self.said += [error] * count


def make(batch_bytes=1000, linger_s=5.0, delivery_s=120.0):
    return Accumulator(batch_bytes=batch_bytes, linger_s=linger_s, delivery_s=delivery_s)


def put(accumulator, value=b"v", partition=HERE, now=0.0, told=None):
    size = record_bytes(None, value, ())
    return accumulator.append(partition, 1, None, value, (), told or Told(), size=size, now=now)


def drain(accumulator, *partitions, bytes_max=1 << 20, admits=lambda batch: True):
    batches = accumulator.drain(partitions or (HERE,), bytes_max=bytes_max, admits=admits)
    for batch in batches:
        batch.build(Codec.NONE, None, False)
    return batches


def values(*batches):
    return [record.value for batch in batches for record in decode_records(batch.encoded)]


def test_a_batch_goes_when_it_has_lingered():
    accumulator = make()
    assert put(accumulator, now=10.0)  # a new batch: the sender must know when to look
    assert not put(accumulator, now=11.0)
    assert accumulator.ready_at(HERE) == 15.0 and accumulator.next_deadline() == 130.0
    accumulator.hurry = True
    assert accumulator.ready_at(HERE) == 10.0


def test_a_full_batch_goes_at_once_and_the_next_record_begins_another():
    accumulator = make(batch_bytes=HEADER_BYTES + 100)
    put(accumulator, b"a" * 60)
    assert accumulator.ready_at(HERE) == 5.0
    assert put(accumulator, b"b" * 60)
    assert accumulator.ready_at(HERE) == 0.0 and accumulator.queue_lengths("t", 2) == [2, 0]
    (first,) = drain(accumulator)
    assert values(first) == [b"a" * 60] and accumulator.ready_at(HERE) == 5.0
    assert not accumulator.has_closed(HERE) and accumulator.has_closed(THERE)


def test_a_record_larger_than_a_batch_has_one_of_its_own():
    accumulator = make(batch_bytes=100)
    put(accumulator, b"a")
    put(accumulator, b"b" * 500)
    put(accumulator, b"c")
    assert [values(*drain(accumulator)) for _ in range(3)] == [[b"a"], [b"b" * 500], [b"c"]]


def test_a_request_has_one_batch_of_each_partition_as_far_as_it_holds_them():
    accumulator = make(batch_bytes=200)
    for partition in (HERE, THERE):
        for value in (b"1" * 100, b"2" * 100):
            put(accumulator, value, partition)
    assert [batch.partition for batch in drain(accumulator, THERE, HERE)] == [THERE, HERE]
    assert [batch.partition for batch in drain(accumulator, THERE, HERE, bytes_max=200)] == [THERE]
    assert not drain(accumulator, HERE, admits=lambda batch: False)
    assert [batch.partition for batch in drain(accumulator, THERE, HERE, bytes_max=10)] == [HERE]  # at least one batch
    assert not accumulator.partitions() and len(accumulator.incomplete) == 4


def test_batches_come_back_in_the_order_of_their_sequences():
    accumulator = make(batch_bytes=1)
    for number in range(4):
        put(accumulator, b"%d" % number)
    sent = [drain(accumulator)[0] for _ in range(3)]
    for sequence, batch in zip((0x7FFFFFFE, 0x7FFFFFFF, 0), sent, strict=True):
        batch.identity, batch.base_sequence, batch.attempts = ME, sequence, 1
    for index in (2, 0, 1):
        accumulator.put_back(sent[index])
    assert accumulator.ready_at(HERE) == sent[0].retry_at
    assert [values(*drain(accumulator)) for _ in range(4)] == [[b"0"], [b"1"], [b"2"], [b"3"]]


def test_what_is_too_old_is_taken_out():
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


def test_rows_that_are_encoded_already_close_the_batch_before_them():
    accumulator = make()
    put(accumulator, b"a")
    whole = make()
    put(whole, b"b")
    put(whole, b"c")
    encoded = drain(whole)[0].encoded
    told = Told()
    accumulator.append_encoded(HERE, encoded, Entry(told, 2, -1), plain_bytes=99, reserved=77, now=1.0)
    put(accumulator, b"d")
    batches = [drain(accumulator)[0] for _ in range(3)]
    assert [values(batch) for batch in batches] == [[b"a"], [b"b", b"c"], [b"d"]]
    assert batches[1].reserved == 77
    batches[1].deliver(40, -1)
    assert told.said == [(HERE, 40, -1), (HERE, 41, -1)]


def test_deliveries_have_offsets_and_the_time_that_counts():
    accumulator = make()
    told = [Told() for _ in range(3)]
    for one in told:
        put(accumulator, told=one)
    (batch,) = drain(accumulator)
    batch.deliver(10, 555)
    assert [one.said for one in told] == [[(HERE, 10, 555)], [(HERE, 11, 555)], [(HERE, 12, 555)]]
    nobody = ProducerBatch(HERE, 0.0, 1.0)
    nobody.append(77, None, b"", (), told[0])
    nobody.deliver(-1, -1)
    assert told[0].said[-1] == (HERE, -1, 77)


def test_the_stamp_is_checked_by_brokers_and_a_new_one_leaves_what_is_on_its_way_alone():
    accumulator = make()
    put(accumulator)
    (batch,) = drain(accumulator)
    batch.identity, batch.base_sequence = ME, 5
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
def test_pieces_have_the_same_records_sequences_and_deliveries(counts, codec):
    batch = ProducerBatch(HERE, 1.0, 9.0)
    told = [Told() for _ in counts]
    records = []
    for one, count in zip(told, counts, strict=True):
        for _ in range(count):
            records.append((len(records), b"%d" % len(records), (("h", b"1"),)))
            batch.append(records[-1][0], b"k", records[-1][1], records[-1][2], one)
        batch.entries[-count:] = [Entry(one, count, 3)]
    batch.build(codec, None, True)
    batch.reserved, batch.number = 1001, 5
    batch.identity, batch.base_sequence = ME, 0x7FFFFFFF
    pieces = split(batch, codec, None, True)
    assert len(pieces) == 2 and sum(piece.reserved for piece in pieces) == 1001
    assert [piece.number for piece in pieces] == [5, 5]
    found = []
    sequence = 0x7FFFFFFF
    for piece in pieces:
        assert (piece.base_sequence, piece.created_at, piece.deadline) == (sequence, 1.0, 9.0)
        header = read_header(piece.stamp())
        assert header.is_transactional and header.codec == codec and header.record_count == piece.count
        found += [(record.timestamp, record.value, record.headers) for record in decode_records(piece.encoded)]
        sequence = sequence + piece.count & 0x7FFFFFFF
        piece.deliver(100 + len(found) - piece.count, -1)
    assert found == records
    offsets = [offset for one in told for _, offset, _ in one.said]
    assert offsets == list(range(100, 100 + len(records)))
    assert [len(one.said) for one in told] == counts


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_every_record_comes_out_once_and_in_order(data):
    """The accumulator behaves like a list when batches are appended, sent, put back and split in any order."""
    accumulator = make(batch_bytes=data.draw(st.integers(1, 300)), linger_s=1.0)
    written, given_in, on_wire, sequence = [], 0, [], 0
    for _ in range(data.draw(st.integers(1, 60))):
        act = data.draw(st.sampled_from(["append", "append", "send", "acknowledge", "lose", "split"]))
        if act == "append":
            put(accumulator, b"%d" % given_in)
            given_in += 1
        elif act == "send":
            for batch in drain(accumulator):
                if not batch.has_sequence:
                    batch.identity, batch.base_sequence = ME, sequence
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
