"""Records in every codec, exchanged between Headrace's client and librdkafka; and offsets by time."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import confluent_kafka
import pyarrow as pa

from headrace.client import Consumer, Producer, TopicPartition
from tools.prove.client_conformance.server import WAIT_S_MAX, ServerUnderTest

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
T0 = 1_700_000_000_000
BULK = 2000
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)


class Sample(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def samples(seed: int) -> list[Sample]:
    """Return edge cases, followed by a bulk that is worth compressing."""
    random = Random(seed)
    odd = [
        Sample(None, b"no key", (), T0),
        Sample(b"", b"", (), T0 + 1),
        Sample(b"gone", None, (), T0 + 2),
        Sample(None, None, (("only", b"headers"),), T0 + 3),
        Sample(
            b"k", b"v", (("twice", b"1"), ("twice", b"2"), ("null", None), ("", b""), ("grüße", b"\xff\x00")), T0 + 4
        ),
        Sample(b"early", b"v", (), 1),
        Sample(b"large", random.randbytes(100_000), (), T0 + 5),
        Sample(bytes(range(256)), bytes(range(256)) * 3, (), T0 + 6),
    ]
    bulk = [
        Sample(
            b"key %d" % (number % 10), b"a value that repeats itself %d" % number, (("n", b"%d" % number),), T0 + number
        )
        for number in range(BULK)
    ]
    return odd + bulk


def codecs(server: ServerUnderTest) -> str:
    """Write and read every sample with Headrace's client and with librdkafka.

    Headrace's client writes records and Arrow rows that librdkafka reads; librdkafka writes records that Headrace's
    client reads as records and as rows.
    """
    wanted = samples(7)
    for codec in CODECS:
        topic = server.topic(3)
        with Producer(server.options(compression_type=codec, batch_size=65_536)) as producer:
            sent = [
                producer.send(
                    topic, one.value, one.key, partition=0, timestamp_ms=one.timestamp_ms, headers=one.headers
                )
                for one in wanted
            ]
            rows = producer.send_batch(topic, _table(wanted), partition=1)
            assert [one.result(WAIT_S_MAX).offset for one in sent] == list(range(len(wanted)))
            assert sum(one.rows for one in rows.result(WAIT_S_MAX)) == len(wanted)
            rate = producer.metrics()["compression-rate-avg"]
            assert rate == 1 if codec == "none" else rate < 1, f"{codec}: compression-rate-avg {rate}"
        _confluent_write(server, topic, wanted, codec)
        for index, messages in enumerate(server.confluent_read(topic, 3)):
            assert list(map(_sample_of, messages)) == wanted, f"{codec}: librdkafka reads partition {index} differently"
        for index, records in enumerate(server.read(topic, 3)):
            found = [Sample(one.key, one.value, one.headers, one.timestamp) for one in records]
            assert found == wanted, f"{codec}: Headrace's consumer reads partition {index} differently"
        for index, rows_read in enumerate(_rows(server, topic, 3)):
            assert rows_read == wanted, f"{codec}: partition {index} differs in Arrow"
    return f"{len(CODECS)} codecs, {len(CODECS) * 3 * len(wanted)} records"


def _table(wanted: list[Sample]) -> pa.Table:
    headers = [[{"key": name, "value": value} for name, value in one.headers] for one in wanted]
    columns = [
        [one.key for one in wanted],
        [one.value for one in wanted],
        headers,
        [one.timestamp_ms for one in wanted],
    ]
    return pa.table([pa.array(one, field.type) for one, field in zip(columns, COLUMNS, strict=True)], schema=COLUMNS)


def _confluent_write(server: ServerUnderTest, topic: str, wanted: list[Sample], codec: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap, "compression.type": codec, "linger.ms": 20, "log_level": 2}
    )
    for one in wanted:
        headers: list[tuple[str, str | bytes | None]] = list(one.headers)
        producer.produce(topic, one.value, one.key, partition=2, timestamp=one.timestamp_ms, headers=headers)
    assert producer.flush(WAIT_S_MAX) == 0


def _sample_of(message: Any) -> Sample:
    return Sample(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])


def _rows(server: ServerUnderTest, topic: str, partitions: int) -> list[list[Sample]]:
    places = [TopicPartition(topic, index) for index in range(partitions)]
    found: list[list[Sample]] = [[] for _ in places]
    with Consumer(server.options(auto_offset_reset="earliest")) as consumer:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for (_, index), batch in consumer.poll_batch(1.0, columns=("key", "value", "headers", "timestamp")):
                times = batch["timestamp"].cast(pa.int64()).to_pylist()
                columns = (batch["key"].to_pylist(), batch["value"].to_pylist(), batch["headers"].to_pylist(), times)
                for key, value, headers, time_ms in zip(*columns, strict=True):
                    found[index].append(Sample(key, value, tuple((h["key"], h["value"]) for h in headers), time_ms))
    return found


def offsets_by_time(server: ServerUnderTest) -> str:
    """Compare offsets by time with librdkafka's: with gaps, out-of-order times, before the first and after the last."""
    random = Random(11)
    topic, times = server.topic(), [T0 + random.randrange(100_000) for _ in range(500)]
    with Producer(server.options(batch_size=500)) as producer:
        for time_ms in times:
            producer.send(topic, b"x" * 50, timestamp_ms=time_ms)
    partition = TopicPartition(topic, 0)
    requested = [
        0,
        T0,
        *sorted(random.sample(times, 40)),
        *(T0 + random.randrange(100_000) for _ in range(40)),
        max(times),
    ]
    theirs = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": "unused", "log_level": 2})
    with Consumer(server.options()) as consumer:
        for time_ms in requested:
            [found] = theirs.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, time_ms)], WAIT_S_MAX)
            ours = consumer.offsets_for_times({partition: time_ms})[partition]
            expected = next(index for index, one in enumerate(times) if one >= time_ms)
            assert ours is not None and ours.offset == found.offset == expected, (time_ms, ours, found, expected)
        assert consumer.offsets_for_times({partition: max(times) + 1})[partition] is None
        consumer.assign([partition])
        consumer.seek_to_time([partition], requested[5])
        first = consumer.poll(WAIT_S_MAX, 1)[0]
        assert first.offset == next(index for index, one in enumerate(times) if one >= requested[5])
    theirs.close()
    return f"{len(requested) + 1} times"
