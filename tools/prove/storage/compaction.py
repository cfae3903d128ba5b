"""Compaction on running nodes, observed with clients, dump-log and Kafka: exactly the last value of every key remains."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from testkit.kafka_peer import KafkaPeer, tool

from headrace.testing.processes import NodeProcess
from tools.prove.registry import print_progress
from tools.prove.storage.dump_log import dump_everything

WAIT_S = 60.0
CLEAN_S_MAX = 300.0
AHEAD_MS = 600_000  # how far the timestamp of a rolling record is in the future
ROLLING_KEY = b"rolls the segment"
CHECKPOINT = "cleaner-offset-checkpoint"
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "1000", "log.initial.task.delay.ms": "100"}
TOPIC_CONFIGS = {"cleanup.policy": "compact", "segment.ms": "300000", "segment.bytes": "1048576"}
DIRTY_RATIO = "min.cleanable.dirty.ratio"
VALUE_BYTES = 80
TOMBSTONE_SHARE = 0.01
IN_FLIGHT_MAX = 50_000

GAP = re.compile(r"^\s*\d+ is followed by \d+$")

Kept = list[tuple[int, bytes | None, bytes | None]]  # offset, key, value


def create(bootstrap: str, topic: str, **configs: str) -> None:
    given = {**TOPIC_CONFIGS, **{name.replace("_", "."): value for name, value in configs.items()}}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=given)])[topic].result(WAIT_S)


def alter(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


def make_producer(bootstrap: str, **options: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "metadata.recovery.strategy": "none",
            "queue.buffering.max.messages": IN_FLIGHT_MAX,
            "log_level": 0,
            **options,
        }
    )


def roll(producer: Producer, topic: str, turn: int = 0) -> None:
    """Roll the active segment with a record whose timestamp is in the future, further with each turn."""
    assert producer.flush(WAIT_S) == 0
    producer.produce(topic, b"", ROLLING_KEY, timestamp=int(time.time() * 1000) + (turn + 1) * AHEAD_MS)
    assert producer.flush(WAIT_S) == 0


def read_all(bootstrap: str, topic: str) -> Kept:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: Kept = []
    try:
        low, _ = watermarks(consumer, topic)
        consumer.assign([TopicPartition(topic, 0, low)])
        received_at = time.monotonic()
        while True:
            messages = consumer.consume(10_000, 0.1)
            received_at = time.monotonic() if messages else received_at
            assert time.monotonic() < received_at + WAIT_S, f"no records of {topic} for {WAIT_S:.0f} s"
            for message in messages:
                error = message.error()
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    found.append((offset, message.key(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise AssertionError(f"{topic}: {error}")
    finally:
        consumer.close()


def watermarks(consumer: Consumer, topic: str) -> tuple[int, int]:
    """Return the watermarks, retrying because a broker that has just started responds before it leads."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)
            return low, high
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def wait_until_clean(data_dir: Path, bootstrap: str, topic: str) -> int:
    """Wait until everything up to the last record is compacted, according to the checkpoint; return the end offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    _, high = watermarks(consumer, topic)
    consumer.close()

    def is_clean() -> bool:
        try:
            lines = (data_dir / CHECKPOINT).read_text().splitlines()[2:]
        except FileNotFoundError:
            return False
        return any(line.startswith(f"{topic} 0 ") and int(line.split()[2]) >= high - 1 for line in lines)

    wait(f"{topic} is compacted up to {high - 1}", is_clean)
    return int(high)


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CLEAN_S_MAX
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {CLEAN_S_MAX:.0f} s"
        time.sleep(0.05)


def check_files(data_dir: Path) -> None:
    """Check the files with Kafka's dump-log, ignoring the gaps in offsets that it reports."""
    problems = [line for line in dump_everything(data_dir).problems if not GAP.match(line)]
    assert not problems, "\n".join(problems[:20])


# --- a hundred records become one


def hundred_become_one(node: NodeProcess) -> None:
    create(node.bootstrap, "hundred", min_cleanable_dirty_ratio="0.0")
    producer = make_producer(node.bootstrap)
    for number in range(100):
        producer.produce("hundred", b"%d" % number, b"one")
    roll(producer, "hundred")
    wait_until_clean(node.data_dir, node.bootstrap, "hundred")
    assert read_all(node.bootstrap, "hundred")[:-1] == [(99, b"one", b"99")]
    file = node.data_dir / "hundred-0" / f"{0:020d}.log"
    wait("the compacted segment replaces the old one", file.exists)
    command = [sys.executable, "-m", "headrace", "dump-log", "--print-data-log", str(file)]
    ours = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kafkas = tool("dump-log", "--print-data-log", "--files", str(file)).stdout.decode()
    for dumped in (ours, kafkas):
        assert dumped.count("| offset:") == 1 and "| offset: 99 " in dumped and "payload: 99" in dumped, dumped


# --- the last value of every key, under writes and kill -9


def keyed_topic(node: NodeProcess, records: int, keys: int, kills: int, random: Random) -> dict[bytes, bytes | None]:
    """Write the records, all acknowledged, and return the last value of each key."""
    create(node.bootstrap, "keyed", min_cleanable_dirty_ratio="0.3", segment_bytes=str(max(1 << 20, records * 2)))
    producer = make_producer(node.bootstrap)
    expected: dict[bytes, bytes | None] = {}
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    padding = b"." * (VALUE_BYTES - 8)
    for number in range(records):
        if kills and number and number % (records // (kills + 1)) == 0:
            print_progress(f"kill -9 after {number} records with {len(expected)} keys")
            node.kill()
            node.start()
        key = b"key-%d" % random.randrange(keys)
        value = None if random.random() < TOMBSTONE_SHARE else number.to_bytes(8, "big") + padding
        expected[key] = value
        while True:
            try:
                producer.produce("keyed", value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    roll(producer, "keyed")
    assert not failed, f"{len(failed)} records were not acknowledged: {failed[0]}"
    return expected


def check_keys(found: Kept, expected: dict[bytes, bytes | None]) -> None:
    kept = {key: value for _, key, value in found if key != ROLLING_KEY}
    wrong = [key for key, value in expected.items() if key not in kept or kept[key] != value]
    assert not wrong, f"{len(wrong)} of {len(expected)} keys do not have their last value, for example {wrong[0]!r}"
    assert len(found) == len(expected) + 1, f"{len(found) - 1} records for {len(expected)} keys"


def check_compaction(work: Path, records: int, keys: int, kills: int, seed: int) -> str:
    """Compact a topic during writes and kills, check what remains and return a summary."""
    random = Random(seed)
    node = NodeProcess(SETTINGS, directory=work)
    with node:
        hundred_become_one(node)
        print_progress(f"writing {records} records with {keys} keys, with {kills} times kill -9")
        started = time.monotonic()
        expected = keyed_topic(node, records, keys, kills, random)
        written_s = time.monotonic() - started
        alter(node.bootstrap, "keyed", DIRTY_RATIO, "0.0")
        wait_until_clean(node.data_dir, node.bootstrap, "keyed")
        ours = read_all(node.bootstrap, "keyed")
        check_keys(ours, expected)
        assert "cannot be compacted" not in node.log_text()
        assert node.terminate() == 0
    print_progress("checking the files with Kafka's dump-log")
    check_files(node.data_dir)
    print_progress("opening the directory with Kafka")
    peer = KafkaPeer({**SETTINGS, "log.cleaner.enable": "false"}, directory=work)
    with peer:
        theirs = read_all(peer.bootstrap, "keyed")
        assert theirs == ours, "Kafka reads other records in the compacted directory"
    return f"{records} records became {len(ours) - 1}, one for each key, {kills} kills, {written_s:.0f} s of writes; seed {seed}"


# --- the same topic, compacted by both servers


def same_records_as_kafka(work: Path, records: int, keys: int, seed: int, turns: int = 3) -> str:
    """Write the same records in all codecs to both servers in turns; what remains must be equal, offset for offset."""
    with (
        NodeProcess(SETTINGS, directory=work / "headrace") as node,
        KafkaPeer(SETTINGS, directory=work / "kafka") as peer,
    ):
        servers = [(node.data_dir, node.bootstrap), (peer.data_dir, peer.bootstrap)]
        for _, bootstrap in servers:
            create(bootstrap, "same", min_cleanable_dirty_ratio="0.0", delete_retention_ms="2000")
        left = 0
        for turn in range(turns):
            time.sleep(2.1 if turn else 0)  # the tombstones of the previous turn have expired
            for _, bootstrap in servers:
                _write_turn(bootstrap, records, keys, Random(seed + turn), turn)
            found = []
            for data_dir, bootstrap in servers:
                wait_until_clean(data_dir, bootstrap, "same")
                found.append(read_all(bootstrap, "same"))
            assert found[0] == found[1], _difference(found[0], found[1])
            left = len(found[0])
    check_files(node.data_dir)
    return f"{turns * records} records with {keys} keys: the same {left} remain"


def _write_turn(bootstrap: str, records: int, keys: int, random: Random, turn: int) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = make_producer(bootstrap, **{"compression.type": codec, "linger.ms": 20})
        for number in range(records // 5):
            value = None if random.random() < 0.1 else b"%d %d " % (turn, number) * random.randint(1, 10)
            producer.produce("same", value, b"key-%d" % (turn * keys // 2 + random.randrange(keys)))
        assert producer.flush(WAIT_S) == 0
    roll(make_producer(bootstrap), "same", turn)


def _difference(ours: Kept, theirs: Kept) -> str:
    only_ours, only_theirs = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    return f"only Headrace kept {only_ours[:3]} ({len(only_ours)}), only Kafka {only_theirs[:3]} ({len(only_theirs)})"
