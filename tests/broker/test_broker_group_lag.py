"""Group lag in /metrics: in records and seconds, for partitions on this broker and for any group name."""

from __future__ import annotations

import asyncio
import time
import urllib.request

import pytest

from headrace.base.ids import TopicPartition
from headrace.broker.metrics import group_lag
from headrace.client.admin.groups import commit_offsets
from headrace.client.producer.producer import AsyncProducer
from headrace.client.wire.cluster import Cluster
from headrace.testing.cluster import EmbeddedNode

WRITTEN_S_AGO = 1000


def scrape(node: EmbeddedNode) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.node.http_port}/metrics", timeout=20) as response:
        lines = response.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}


async def fill(bootstrap: str, group: str) -> None:
    host, _, port = bootstrap.rpartition(":")
    async with Cluster([(host, int(port))]) as cluster:
        partition = TopicPartition("t", 0)
        await cluster.partitions("t", create=True)
        async with AsyncProducer({}, cluster=cluster) as producer:
            for age in (WRITTEN_S_AGO, 0):
                written_ms = int((time.time() - age) * 1000)
                for _ in range(5):
                    await producer.send("t", b"v", b"k", timestamp_ms=written_ms)
                await producer.flush()
        await cluster.partitions("empty", create=True)
        await commit_offsets(cluster, group, {partition: 2, TopicPartition("empty", 0): 0})


def test_group_lag_is_exported_in_records_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    group = 'say "hi"\\'
    with EmbeddedNode({"headrace.http.listener": "127.0.0.1:0", "num.partitions": "1"}) as node:
        asyncio.run(fill(node.bootstrap, group))
        samples = scrape(node)
        labels = '{consumergroup="say \\"hi\\"\\\\",topic="t",partition="0"}'
        assert samples[f"kafka_consumergroup_current_offset{labels}"] == 2
        assert samples[f"kafka_consumergroup_lag{labels}"] == 8
        assert abs(samples[f"kafka_consumergroup_lag_seconds{labels}"] - WRITTEN_S_AGO) < 60
        empty = labels.replace('"t"', '"empty"')
        assert samples[f"kafka_consumergroup_lag{empty}"] == samples[f"kafka_consumergroup_lag_seconds{empty}"] == 0
        assert samples["headrace_group_lag_left_out"] == 0
        monkeypatch.setattr(group_lag, "SERIES_MAX", 1)
        scrape(node)
        assert scrape(node)["headrace_group_lag_left_out"] == 1
