"""compression.type compared with real Kafka: for any producer codec, the log has the same batches in the same codec."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from testkit.kafka_peer import KafkaPeer, require_kafka, tool

from headrace.records.recompress import TARGETS
from headrace.testing.processes import NodeProcess

SOURCES = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 30


def stored(server: Any) -> Any:
    """Return the number of records in each codec by topic, as Kafka's dump-log prints it."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    topics = [NewTopic(f"as-{target}", 1, 1, config={"compression.type": target}) for target in TARGETS]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_S)
    for source in SOURCES:
        producer = Producer(
            {"bootstrap.servers": server.bootstrap, "compression.type": source, "linger.ms": 200, "log_level": 0}
        )
        for topic in topics:
            for number in range(40):
                producer.produce(topic.topic, b"v" * 300, key=b"k%d" % number)
        assert producer.flush(WAIT_S) == 0
    files = [str(server.data_dir / f"as-{target}-0" / "00000000000000000000.log") for target in TARGETS]
    dump_output = tool("dump-log", "--files", ",".join(files)).stdout.decode()
    found: dict[Any, Any] = {}
    for target, part in zip(TARGETS, dump_output.split("Dumping ")[1:], strict=True):
        counts = found[target] = Counter()
        for count, codec in re.findall(r"count: (\d+).*?compresscodec: (\w+)", part):
            counts[codec] += int(count)
    return found


def test_stored_codecs_match_kafka_for_every_compression_type() -> None:
    require_kafka()
    with NodeProcess() as node:
        ours = stored(node)
    with KafkaPeer() as kafka:
        theirs = stored(kafka)
    assert ours == theirs
    assert ours["producer"] == dict.fromkeys(SOURCES, 40) and ours["zstd"] == {"zstd": 200}
