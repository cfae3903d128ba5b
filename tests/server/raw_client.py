"""A client that sends whatever bytes a test wants, and a well-behaved one that checks that the node still serves."""

from __future__ import annotations

import asyncio
import socket
from struct import pack, unpack
from typing import Any

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.batch import iterate_batches
from headrace.records.builder import BatchBuilder
from headrace.testing.cluster import EmbeddedNode

WAIT_S_MAX = 20.0
CLIENT_ID = "raw"


class RawClient:
    def __init__(self, node: EmbeddedNode) -> None:
        self.socket = socket.create_connection(("127.0.0.1", node.port), WAIT_S_MAX)
        self._correlation = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        self.send(pack(">i", len(body)) + body)

    def receive(self, size: int) -> bytes:
        """Return `size` bytes, or fewer if the node closes the connection."""
        data = b""
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
        return data

    def frame(self) -> bytes | None:
        """Return the next response, or None if the connection was closed instead."""
        head = self.receive(4)
        return self.receive(unpack(">i", head)[0]) if len(head) == 4 else None

    def is_closed(self) -> bool:
        return self.frame() is None

    def send_request(self, message: Any, version: int) -> Any:
        """Return the decoded response, or None if the connection was closed."""
        self._correlation += 1
        self.send(b"".join(encode_request(message, version, self._correlation, CLIENT_ID)))
        data = self.frame()
        if data is None:
            return None
        return decode_response(message.facts.api_key, version, self._correlation, memoryview(data))

    def produce(self, topic: str, records: bytes | bytearray | None, index: int = 0, acks: int = 1) -> Any:
        """Produce to one partition and return its response, or None if the connection was closed."""
        data = ProduceRequest.PartitionProduceData(index=index, records=None if records is None else bytes(records))
        request = ProduceRequest(
            acks=acks,
            timeout_ms=5000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        response = self.send_request(request, 9)
        return None if response is None else response.responses[0].partition_responses[0]

    def log_end(self, topic: str) -> int:
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
        )
        found = self.send_request(request, 7).topics[0].partitions[0]
        assert found.error_code == ErrorCode.NONE, ErrorCode(found.error_code)
        return int(found.offset)

    def fetch(self, topic: str, offset: int = 0) -> Any:
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_bytes=1 << 20, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])])
        return self.send_request(request, 11).responses[0].partitions[0]


def batch(*values: bytes, **more: Any) -> bytearray:
    builder = BatchBuilder()
    for value in values or (b"value",):
        builder.append(1_700_000_000_000, None, value)
    return builder.build(**more)


def count_records(data: Any) -> int:
    return sum(header.record_count for _, header in iterate_batches(memoryview(bytes(data))))


def make_topic(node: EmbeddedNode, topic: str) -> None:
    async def make() -> None:
        async with Cluster([("127.0.0.1", node.port)], timeout_s=WAIT_S_MAX) as cluster:
            await cluster.partitions(topic, create=True)
            await cluster.leader(TopicPartition(topic, 0))

    asyncio.run(make())


def assert_still_serving(node: EmbeddedNode, topic: str = "well") -> None:
    """Check that a well-behaved client can produce to a separate topic and fetch from it."""
    make_topic(node, topic)
    with RawClient(node) as client:
        end = client.log_end(topic)
        response = client.produce(topic, batch(b"one", b"two"))
        assert (response.error_code, response.base_offset) == (ErrorCode.NONE, end)
        assert client.log_end(topic) == end + 2
        assert count_records(client.fetch(topic, end).records) == 2
