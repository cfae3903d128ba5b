"""Compaction of one keyed topic, from when it is allowed until it is in the checkpoint, with a concurrent producer."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from bench.errors import BenchFailed, CannotRun
from bench.line import Figure, Measurement, Options
from bench.load.frames import Batch, make_batch, produce_frame
from bench.load.generator import Span, run_load, target_of
from bench.load.produce import IN_FLIGHT, produce_load
from bench.systems.processes import rss_bytes
from bench.systems.requests import Connection, create_topic, wait_until_served
from bench.systems.servers import KAFKA, Broker, Process, System
from headrace.records.builder import BatchBuilder
from headrace.testing.processes import LOOPBACK

TOPIC, OTHER_TOPIC = "compacted", "other"
SEED = 7
BATCH_RECORDS = 500
VALUE_BYTES = 100
KEYS_SHARE = 0.2  # share of distinct keys among the records: each key is written about five times
FILL_S_MAX = 600.0
CLEAN_S_MAX = 600.0
ALONE_S = 3.0
CONCURRENT_S_MAX = 60.0
AHEAD_MS = 600_000  # how far the timestamp of the last record is ahead, which makes the server roll the segment
DIRTY_RATIO = "min.cleanable.dirty.ratio"
NEVER, NOW = "1.0", "0.0"
CHECKPOINT = "cleaner-offset-checkpoint"
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20), "segment.ms": "300000", DIRTY_RATIO: NEVER}
BACKOFF = {"log.cleaner.backoff.ms": "100"}


@dataclass(frozen=True)
class Compaction:
    name: str = "compaction"
    title: str = "compact a topic of 100 B records, each key five times, while a producer writes"
    figures: tuple[Figure, ...] = (
        Figure("mb_per_s", "MB/s of log", True, goal=1.0),
        Figure("records_per_s", "records/s", True, goal=1.0),
        Figure("p99_ratio", "producer's p99, compacting / alone", False, goal_absolute=2.0, digits=1),
        Figure("more_mb", "additional memory, MB", False),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        directory = options.work / f"{system.name}-{topic}"
        shutil.rmtree(directory, ignore_errors=True)
        process = system.spawn(directory.absolute())
        try:
            process.start()
            return _compact(process, options)
        finally:
            process.kill()
            process.close()
            shutil.rmtree(directory, ignore_errors=True)


def _compact(process: Process, options: Options) -> Measurement:
    bootstrap = f"{LOOPBACK}:{process.port}"
    _configure(bootstrap, broker=True, values=BACKOFF)
    with Connection(process.port) as connection:
        for topic in (TOPIC, OTHER_TOPIC):
            create_topic(connection, topic, 1)
            wait_until_served(connection, topic, 1)
    _configure(bootstrap, broker=False, values=CONFIGS)
    records = _fill(process, options.compaction_records)
    files = process.data_dir / f"{TOPIC}-0"
    size = sum(path.stat().st_size for path in files.glob("*.log"))
    other_load = produce_load(OTHER_TOPIC, [make_batch(1, 100)], 1, 1)
    alone = run_load(other_load, target_of(process), Span(min(ALONE_S, options.seconds), 0.1))
    memory = rss_bytes(process.pid)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        seconds = min(CONCURRENT_S_MAX, max(options.seconds, 1.0))
        running = threads.submit(run_load, other_load, target_of(process), Span(seconds))
        _configure(bootstrap, broker=False, values={DIRTY_RATIO: NOW})
        peak = _wait_until_clean(process, files.parent / CHECKPOINT, records - 1, memory)
        compaction_s = time.monotonic() - began
        concurrent = running.result()
    left = sum(path.stat().st_size for path in files.glob("*.log"))
    return Measurement(
        {
            "mb_per_s": size / compaction_s / 1e6,
            "records_per_s": records / compaction_s,
            "p99_ratio": concurrent.p99_us / max(alone.p99_us, 1.0),
            "more_mb": (peak - memory) / 1e6,
        },
        {
            "records": records,
            "bytes": size,
            "bytes_left": left,
            "seconds": compaction_s,
            "alone_p99_us": alone.p99_us,
            "p99_us": concurrent.p99_us,
        },
    )


def _fill(process: Process, records: int) -> int:
    """Write batches of random keys, each key about five times, and return the number of records.

    A last record with a timestamp far ahead closes the segment.
    """
    random = Random(SEED)
    keys = max(1, int(records * KEYS_SHARE))
    distinct = max(1, keys // BATCH_RECORDS)
    batches = [_keyed(random, keys, 0) for _ in range(distinct)]
    load = produce_load(TOPIC, batches[:1], 1, IN_FLIGHT)
    load = replace(load, frames=[[produce_frame(TOPIC, 0, batch) for batch in batches]])
    requests = max(1, records // BATCH_RECORDS)
    outcome = run_load(load, target_of(process), Span(FILL_S_MAX, 0.0, requests * load.payload_bytes))
    last = _keyed(random, keys, AHEAD_MS, records=1)
    once = run_load(produce_load(TOPIC, [last], 1, 1), target_of(process), Span(FILL_S_MAX, 0.0, last.size))
    if outcome.errors or once.errors:
        raise BenchFailed(f"filling {TOPIC} failed with error {outcome.first_error or once.first_error}")
    return outcome.all_responses * BATCH_RECORDS + once.all_responses


def _keyed(random: Random, keys: int, ahead_ms: int, records: int = BATCH_RECORDS) -> Batch:
    builder = BatchBuilder()
    timestamp = int(time.time() * 1000) + ahead_ms
    for _ in range(records):
        builder.append(timestamp, b"key-%08d" % random.randrange(keys), random.randbytes(VALUE_BYTES))
    return Batch(bytes(builder.build()), records, builder.size)


def _wait_until_clean(process: Process, checkpoint: Path, offset: int, memory: int) -> int:
    """Wait until the checkpoint reaches `offset` and return the peak memory seen meanwhile."""
    deadline, peak = time.monotonic() + CLEAN_S_MAX, memory
    while True:
        peak = max(peak, rss_bytes(process.pid))
        text = checkpoint.read_text() if checkpoint.exists() else ""
        found = [line.split()[2] for line in text.splitlines() if line.startswith(f"{TOPIC} 0 ")]
        if found and int(found[0]) >= offset:
            return peak
        if time.monotonic() > deadline:
            raise BenchFailed(f"{TOPIC} was not compacted up to {offset} within {CLEAN_S_MAX:.0f} s")
        time.sleep(0.005)


def _configure(bootstrap: str, *, broker: bool, values: dict[str, str]) -> None:
    try:
        from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
    except ImportError as error:
        raise CannotRun(f"confluent-kafka is not installed: {error}") from error
    kind, name = (ResourceType.BROKER, "1") if broker else (ResourceType.TOPIC, TOPIC)
    entries = [ConfigEntry(key, text, incremental_operation=AlterConfigOpType.SET) for key, text in values.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values():
        future.result(FILL_S_MAX)
