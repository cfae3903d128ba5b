"""Storage compared with real Kafka: the same old segments, retention, special offsets and responses."""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.kafka_peer import KafkaPeer, require_kafka, tool

from headrace.base.ids import TopicPartition
from headrace.client.wire.cluster import Cluster
from headrace.metadata.image import TOPIC_CONFIG
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec, compress
from headrace.testing.cluster import EmbeddedNode
from headrace.testing.processes import LOOPBACK

pytestmark = pytest.mark.java
DAY_MS = 86_400_000
BASE_MS = 1_600_000_000_000
WAIT_S_MAX = 20.0


def message(magic: int, offset: int, value: bytes, *, timestamp: int = -1, codec: Codec = Codec.NONE) -> bytes:
    body = struct.pack(">bb", magic, codec)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(magic: int, first: int, count: int, codec: Codec) -> bytes:
    inner = b"".join(
        message(
            magic, number if magic else first + number, b"w%d" % (first + number), timestamp=BASE_MS + first + number
        )
        for number in range(count)
    )
    last = first + count - 1
    return message(magic, last, compress(codec, inner), timestamp=BASE_MS + last, codec=codec)


def put_old_segments(directory: Path, magic: int) -> None:
    """Write offsets 0 to 34 in place of a new topic's empty segment."""
    for path in directory.glob("0*"):
        path.unlink()
    codecs = (Codec.SNAPPY, Codec.GZIP, Codec.LZ4 if magic else Codec.GZIP)
    first = [message(magic, offset, b"v%d" % offset, timestamp=BASE_MS + offset) for offset in range(10)]
    second = [message(magic, offset, b"v%d" % offset, timestamp=BASE_MS + offset) for offset in range(10, 20)]
    second += [wrapper(magic, 20 + 5 * number, 5, codec) for number, codec in enumerate(codecs)]
    (directory / f"{0:020d}.log").write_bytes(b"".join(first))
    (directory / f"{10:020d}.log").write_bytes(b"".join(second))


class ServerClient:
    """One of the two servers, with our own client."""

    def __init__(self, port: int) -> None:
        self._port = port

    def run_with_cluster(self, work: Callable[[Cluster], Any]) -> Any:
        async def connect_and_run() -> Any:
            async with Cluster([(LOOPBACK, self._port)]) as cluster:
                return await work(cluster)

        return asyncio.run(connect_and_run())

    def create(self, name: str, **configs: str) -> None:
        options = [
            CreateTopicsRequest.CreatableTopicConfig(name=option.replace("_", "."), value=value)
            for option, value in configs.items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=options)
        response = self.run_with_cluster(lambda cluster: cluster.request(CreateTopicsRequest(topics=[topic])))
        assert response.topics[0].error_code == 0

    def alter(self, name: str, **configs: str) -> None:
        options = [
            IncrementalAlterConfigsRequest.AlterableConfig(name=option.replace("_", "."), value=value)
            for option, value in configs.items()
        ]
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC_CONFIG, resource_name=name, configs=options
        )
        response = self.run_with_cluster(
            lambda cluster: cluster.request(IncrementalAlterConfigsRequest(resources=[resource]))
        )
        assert response.responses[0].error_code == 0

    def send(self, name: str, timestamps: list[int], size: int = 100) -> None:
        async def work(cluster: Cluster) -> None:
            builder = BatchBuilder()
            for timestamp in timestamps:
                builder.append(timestamp, b"k", b"v" * size)
            connection = await cluster.leader(TopicPartition(name, 0))
            data = ProduceRequest.PartitionProduceData(index=0, records=bytes(builder.build()))
            topic = ProduceRequest.TopicProduceData(topic_id=cluster.topic_id(name), partition_data=[data])
            response = await connection.request(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]))
            assert response.responses[0].partition_responses[0].error_code == 0

        self.run_with_cluster(work)

    def offsets(self, name: str, timestamps: list[int]) -> list[tuple[int, int, int, int]]:
        async def work(cluster: Cluster) -> list[tuple[int, int, int, int]]:
            connection = await cluster.leader(TopicPartition(name, 0))
            found = []
            for timestamp in timestamps:
                wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                topic = ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[wanted])
                response: ListOffsetsResponse = await connection.request(
                    ListOffsetsRequest(replica_id=-1, topics=[topic])
                )
                one = response.topics[0].partitions[0]
                found.append((one.error_code, one.offset, one.timestamp, one.leader_epoch))
            return found

        return self.run_with_cluster(work)

    def fetch(self, name: str, offset: int) -> tuple[int, int, bytes]:
        async def work(cluster: Cluster) -> tuple[int, int, bytes]:
            connection = await cluster.leader(TopicPartition(name, 0))
            wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            topic = FetchRequest.FetchTopic(topic_id=cluster.topic_id(name), partitions=[wanted])
            response: FetchResponse = await connection.request(
                FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
            )
            data = response.responses[0].partitions[0]
            return data.error_code, data.log_start_offset, bytes(data.records or b"")  # type: ignore[arg-type]

        return self.run_with_cluster(work)

    def delete_records(self, name: str, offset: int) -> tuple[int, int]:
        async def work(cluster: Cluster) -> tuple[int, int]:
            wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
            topic = DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[wanted])
            connection = await cluster.leader(TopicPartition(name, 0))
            response: DeleteRecordsResponse = await connection.request(
                DeleteRecordsRequest(topics=[topic], timeout_ms=5000)
            )
            one = response.topics[0].partitions[0]
            return one.error_code, one.low_watermark

        return self.run_with_cluster(work)


SPECIAL = [-1, -2, -3, -4, -5, -6]


def test_old_format_segments_are_served_like_kafka_serves_them(tmp_path: Path) -> None:
    require_kafka()
    results = []
    times = [BASE_MS + offset for offset in (-5, 0, 9, 10, 17, 22, 29, 33, 34, 50, 101)]
    with KafkaPeer(directory=tmp_path / "kafka") as kafka, EmbeddedNode() as node:
        for peer in (kafka, node):
            server = ServerClient(peer.port)
            for magic in (0, 1):
                server.create(f"old-{magic}")
            peer.stop()
            for magic in (0, 1):
                put_old_segments(peer.data_dir / f"old-{magic}-0", magic)
            peer.start()
            server = ServerClient(peer.port)
            for magic in (0, 1):
                server.send(f"old-{magic}", [BASE_MS + 100] * 2)
            found = [server.offsets("old-0", SPECIAL)]
            # Kafka finds nothing by time at or after magic 0: it takes the age of the file for that of its records.
            found.append(server.offsets("old-1", [*SPECIAL, *times]))
            fetched = [server.fetch(f"old-{magic}", offset) for magic in (0, 1) for offset in (0, 3, 12, 22, 27, 34)]
            results.append((found, fetched))
            peer.stop()
        assert results[0] == results[1]
        assert results[1][0][0][0][1] == 37
        # Kafka's own reader accepts the files after our node has used them.
        for magic in (0, 1):
            path = node.data_dir / f"old-{magic}-0" / f"{10:020d}.log"
            dump = tool("dump-log", "--deep-iteration", "--files", str(path))
            assert dump.returncode == 0 and b"magic: %d" % magic in dump.stdout and b"offset: 34" in dump.stdout


def test_retention_by_size_time_and_log_start_deletes_the_same_segments_as_kafka(tmp_path: Path) -> None:
    require_kafka()
    settings = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}
    now_ms = int(time.time() * 1000)
    names = ("size", "time", "start", "kept")
    starts = []
    with KafkaPeer(settings, directory=tmp_path / "kafka") as kafka, EmbeddedNode(settings) as node:
        for port, data_dir in ((kafka.port, kafka.data_dir), (node.port, node.data_dir)):
            server = ServerClient(port)
            for name in names:
                server.create(name, internal_segment_bytes="5000", retention_ms="-1")
            for number in range(12):
                for name in names:
                    server.send(name, [now_ms - (11 - number) * DAY_MS // 8] * 10, 200)
            # Only now, on the running node: while records arrive, the timing would decide where segments end.
            server.alter("size", retention_bytes="12000", file_delete_delay_ms="100")
            server.alter("time", retention_ms=str(DAY_MS))
            server.alter("kept", retention_ms="1", cleanup_policy="compact")
            deleted = [server.delete_records("start", offset) for offset in (45, 10, 121, -1, -2)]
            refused = server.delete_records("kept", 5)
            deadline = time.monotonic() + WAIT_S_MAX
            while True:
                found = [server.offsets(name, [-2])[0] for name in names]
                logs = [sorted(path.name for path in (data_dir / f"{name}-0").glob("*.log")) for name in names]
                if (found[0][1] and found[1][1] and len(logs[2]) == 1) or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            starts.append((found, logs, deleted, refused))
    assert starts[0] == starts[1]
    assert starts[1][0][0][1] > 0 and starts[1][0][1][1] > 0
