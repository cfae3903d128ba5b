"""Samples of the checks that need real Kafka: files on disk and responses."""

from __future__ import annotations

import os
import time

import pytest
from testkit.kafka_peer import KafkaPeer, require_kafka
from tools.prove.clients import CLIENTS, WriteOptions
from tools.prove.differential.run import compare
from tools.prove.storage.dump_log import dump_everything

from headrace.testing.cluster import EmbeddedNode
from headrace.testing.processes import LOOPBACK

pytestmark = pytest.mark.java
OPERATIONS = 300


def test_random_requests_get_the_same_responses_as_from_kafka() -> None:
    require_kafka()
    seed = int(os.environ.get("HEADRACE_SEED", time.time_ns() % (1 << 32)))
    with KafkaPeer() as kafka, EmbeddedNode() as node:
        result = compare((LOOPBACK, kafka.port), (LOOPBACK, node.port), operations=OPERATIONS, seed=seed)
    assert not result.differences, f"seed {seed}: {result.differences[0]}"


@pytest.mark.clients
def test_kafkas_dump_log_accepts_all_files() -> None:
    require_kafka()
    with EmbeddedNode({"log.segment.bytes": "1048576"}) as node:
        for codec in ("none", "zstd"):
            CLIENTS[0].write(node.bootstrap, "dumped", CLIENTS[0].samples(), WriteOptions(codec))
        node.kill()
        node.start()
        CLIENTS[0].write(node.bootstrap, "dumped", CLIENTS[0].samples(), WriteOptions("lz4"))
        node.stop()
        dump = dump_everything(node.data_dir)
    assert not dump.problems
    assert dump.batches > 3 and len(dump.epochs) > 1
