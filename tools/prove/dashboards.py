"""Every metric that dashboards read, compared after the same load on Headrace and on a Kafka with jmx_exporter."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from testkit.kafka_peer import Artifact, KafkaPeer, available, fetched, libraries

from headrace.testing.processes import LOOPBACK, NodeProcess, free_port
from tools.prove.registry import ROOT, NotRun

AGENT: Artifact = ("io.prometheus.jmx", "jmx_prometheus_javaagent", "1.0.1")
# Rules for the agent that produce the names that dashboards use.
AGENT_RULES = r"""
lowercaseOutputName: true
rules:
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+)Percent, (.+)=(.+)><>Value", name: "kafka_$1_$2_$3_percent", type: GAUGE}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+)Percent><>(?:Value|MeanRate)", name: "kafka_$1_$2_$3_percent", type: GAUGE}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+)PerSec, (.+)=(.+), (.+)=(.+)><>Count", name: "kafka_$1_$2_$3_total",
     type: COUNTER, labels: {"$4": "$5", "$6": "$7"}}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+)PerSec, (.+)=(.+)><>Count", name: "kafka_$1_$2_$3_total",
     type: COUNTER, labels: {"$4": "$5"}}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+)PerSec><>Count", name: "kafka_$1_$2_$3_total", type: COUNTER}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+), (.+)=(.+), (.+)=(.+)><>Value", name: "kafka_$1_$2_$3",
     type: GAUGE, labels: {"$4": "$5", "$6": "$7"}}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+)><>Value", name: "kafka_$1_$2_$3", type: GAUGE}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+), (.+)=(.+)><>Count", name: "kafka_$1_$2_$3_count",
     type: GAUGE, labels: {"$4": "$5"}}
  - {pattern: "kafka.(\\w+)<type=(.+), name=(.+), (.+)=(.+)><>(\\d+)thPercentile", name: "kafka_$1_$2_$3",
     type: GAUGE, labels: {"$4": "$5", quantile: "0.$6"}}
  - {pattern: "kafka.server<type=socket-server-metrics, listener=(.+), networkProcessor=(.+)><>([a-z-]+):",
     name: "kafka_server_socket_server_metrics_$3", type: GAUGE, labels: {listener: "$1", networkProcessor: "$2"}}
"""
LOAD_S = 60.0
TOPIC = "dashboards"
PARTITIONS = 3
BATCH_RECORDS = 167
RECORDS_PER_ROUND = PARTITIONS * BATCH_RECORDS
TOO_LARGE_BYTES = 2_000_000
WAIT_S_MAX = 60.0
LEADER_POLL_S = 0.1
NOT_READY = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
REQUESTS = ("Produce", "Fetch", "FetchConsumer", "Metadata", "ListOffsets", "ApiVersions")
_ROW = re.compile(
    r"^\| `(?P<name>\w+)` \| (?P<kind>\w+) \| (?P<labels>[\w, ]*)\| (?P<compared>equal|labels) \|", re.MULTILINE
)
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]
Samples = dict[str, dict[Labels, float]]


@dataclass(frozen=True)
class Documented:
    """One row of the table in docs/metrics.md."""

    name: str
    labels: frozenset[str]
    is_equal: bool


def documented(page: str | None = None) -> list[Documented]:
    """Return the rows of the table."""
    text = (ROOT / "docs" / "metrics.md").read_text() if page is None else page
    return [
        Documented(row["name"], frozenset(row["labels"].replace(",", " ").split()), row["compared"] == "equal")
        for row in _ROW.finditer(text)
    ]


def parse(page: str) -> Samples:
    """Parse a page in Prometheus' text format."""
    found: Samples = {}
    for line in page.splitlines():
        if not line.startswith("#") and (sample := _SAMPLE.match(line)):
            names = frozenset(_LABEL.findall(sample["labels"] or ""))
            found.setdefault(sample["name"], {})[names] = float(sample["value"])
    return found


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=WAIT_S_MAX) as response:
        return parse(response.read().decode())


def load(bootstrap: str, seconds: float) -> None:
    """Produce and consume the same batches on both servers, one round per second, a pace that both can keep.

    A batch is sent when it is full, and only then: flush() would send whatever the sender's thread has picked up so far.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S_MAX)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "message.max.bytes": 3_000_000,
            "linger.ms": 100_000,
            "batch.num.messages": BATCH_RECORDS,
        }
    )
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        starts = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        for start in starts:
            _wait_for_leader(consumer, start)
        consumer.assign(starts)
        for number in range(max(1, int(seconds))):
            started = time.monotonic()
            for record in range(RECORDS_PER_ROUND):
                partition = record % PARTITIONS
                producer.produce(TOPIC, b"value %d" % record, partition=partition, timestamp=1_700_000_000_000 + number)
            _wait_delivered(producer)
            _consume(consumer, RECORDS_PER_ROUND)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - started)))
        _send_too_large(producer)
    finally:
        consumer.close()


def _wait_for_leader(consumer: Consumer, partition: TopicPartition) -> None:
    """Wait until the leader of a new partition answers: otherwise it would get its first batch twice."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            consumer.get_watermark_offsets(partition, WAIT_S_MAX, cached=False)
            return
        except KafkaException as failure:
            if failure.args[0].code() not in NOT_READY or time.monotonic() > deadline:
                raise
            time.sleep(LEADER_POLL_S)


def _wait_delivered(producer: Producer) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while len(producer) > 0:
        assert time.monotonic() < deadline, f"{len(producer)} records were not acknowledged"
        producer.poll(0.01)


def _consume(consumer: Consumer, count: int) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while count > 0:
        assert time.monotonic() < deadline, f"{count} records were not delivered"
        for message in consumer.consume(count, 1.0):
            assert message.error() is None, message.error()
            count -= 1


def _send_too_large(producer: Producer) -> None:
    failures: list[KafkaError | None] = []
    producer.produce(TOPIC, bytes(TOO_LARGE_BYTES), partition=0, on_delivery=lambda error, _: failures.append(error))
    producer.flush(WAIT_S_MAX)
    if not failures or failures[0] is None or failures[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
        raise KafkaException(KafkaError(KafkaError._FAIL, "a record above max.message.bytes was accepted"))


def on_headrace(directory: Path, seconds: float) -> Samples:
    port = free_port()
    settings = {"headrace.http.listener": f"{LOOPBACK}:{port}", "log.retention.ms": "-1"}
    with NodeProcess(settings, directory=directory / "headrace") as node:
        load(node.bootstrap, seconds)
        return scrape(port)


def on_kafka(directory: Path, seconds: float) -> Samples:
    reason = available() or fetched("jmx_exporter", _agent_folder(), [AGENT], jar=f"{AGENT[1]}-*.jar")
    if reason is not None:
        raise NotRun(reason)
    port, rules = free_port(), directory / "rules.yml"
    rules.write_text(AGENT_RULES)
    peer = KafkaPeer({"log.retention.ms": "-1"}, directory=directory / "kafka")
    agent = _agent_folder() / f"{AGENT[1]}-{AGENT[2]}.jar"
    peer.server_options = (*KafkaPeer.server_options, f"-javaagent:{agent}={LOOPBACK}:{port}:{rules}")
    with peer:
        load(peer.bootstrap, seconds)
        return scrape(port)


def _agent_folder() -> Path:
    return libraries().parent / f"{AGENT[1]}-{AGENT[2]}"


def differences(ours: Samples, theirs: Samples) -> Iterator[str]:
    """Yield what a dashboard would show differently."""
    for metric in documented():
        headrace, kafka = _relevant(ours, metric), _relevant(theirs, metric)
        if not headrace or not kafka:
            yield f"{metric.name} is missing on {'Kafka' if headrace else 'Headrace'}"
            continue
        if metric.is_equal:
            for key in sorted(headrace.keys() | kafka.keys(), key=sorted):
                # Kafka has no counter before the first event.
                our_value, their_value = headrace.get(key, 0.0), kafka.get(key, 0.0)
                if our_value != their_value:
                    yield f"{metric.name}{dict(key)}: {our_value} on Headrace, {their_value} on Kafka"
        elif {name for key in kafka for name, _ in key} != {name for key in headrace for name, _ in key}:
            yield f"{metric.name} has other labels than on Kafka"
        yield from _implausible(metric.name, headrace)


def _relevant(samples: Samples, metric: Documented) -> dict[Labels, float]:
    """Return the samples that both must have: our topic and common requests, without labels that only one has."""
    found: dict[Labels, float] = {}
    for key, value in samples.get(metric.name, {}).items():
        given = {name: text for name, text in key if name in metric.labels}
        if given.get("topic", TOPIC) != TOPIC or given.get("request", REQUESTS[0]) not in REQUESTS:
            continue
        found[frozenset(given.items())] = value
    return found


def _implausible(name: str, samples: dict[Labels, float]) -> Iterator[str]:
    """Yield values that cannot be in Kafka's unit."""
    for key, value in samples.items():
        if name.endswith("_percent") and not 0 <= value <= 1:
            yield f"{name} is {value}, not a share between 0 and 1"
        if name.endswith("totaltimems") and dict(key)["request"] == "Produce" and not 0 < value < 1000:
            yield f"{name}{dict(key)} is {value}: not the milliseconds of a request"
    if name.endswith("totaltimems_count") and samples[frozenset({("request", "Produce")})] <= 0:
        yield f"{name} counted no request"
