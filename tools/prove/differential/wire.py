"""One server of the comparison: raw frames over a socket, with symbolic names for topic ids and fetch sessions."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from headrace.base.ids import ZERO_UUID
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.metadata import MetadataRequest

RESPONSE_S_MAX = 20.0
CLIENT_ID = "differential"
UNKNOWN_ID = bytes(range(16))
CLOSED = "the connection was closed"
SILENT = "no response"
_SIZE = Struct(">i")


@dataclass
class Target:
    """A server, the ids of its topics and fetch sessions, and a connection to it."""

    name: str
    address: tuple[str, int]
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    _socket: socket.socket | None = None
    _correlation: int = 0

    def connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self.address, RESPONSE_S_MAX)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def request(self, message: Any, version: int) -> Any:
        """Return the decoded response, or CLOSED or SILENT if there is none."""
        self._correlation += 1
        frame = b"".join(encode_request(message, version, self._correlation, CLIENT_ID))
        try:
            self.connect().sendall(frame)
            data = self._receive()
        except TimeoutError:
            self.close()
            return SILENT
        except OSError:
            data = None
        if data is None:
            self.close()
            return CLOSED
        return decode_response(message.facts.api_key, version, self._correlation, memoryview(data))

    def send(self, message: Any, version: int) -> Any:
        """Send a request without a response (acks=0) and return CLOSED if the server closes the connection."""
        self._correlation += 1
        frame = b"".join(encode_request(message, version, self._correlation, CLIENT_ID))
        self.connect().sendall(frame)
        return CLOSED if self.request(ApiVersionsRequest(), 0) == CLOSED else None

    def _receive(self) -> bytes | None:
        head = self._exactly(4)
        return None if head is None else self._exactly(_SIZE.unpack(head)[0])

    def _exactly(self, size: int) -> bytes | None:
        parts = []
        while size:
            part = self.connect().recv(min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # --- symbolic names

    def topic_id(self, topic: str) -> Any:
        return self.topic_ids.get(topic, ZERO_UUID if topic == "" else UNKNOWN_ID)

    def topic_named(self, topic_id: bytes) -> str:
        for name, known in self.topic_ids.items():
            if known == topic_id:
                return name
        return "" if topic_id == ZERO_UUID else "unknown"

    # --- set-up

    def create_topics(self, topics: dict[str, tuple[int, dict[str, str]]]) -> None:
        wanted = [
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=option, value=value)
                    for option, value in options.items()
                ],
            )
            for name, (partitions, options) in topics.items()
        ]
        response = self.request(CreateTopicsRequest(topics=wanted, timeout_ms=20_000), 7)
        for topic in response.topics:
            assert topic.error_code == 0, f"{self.name}: {topic.name} was not created: {topic.error_message}"
        self._wait_for_leaders(list(topics))

    def _wait_for_leaders(self, topics: list[str]) -> None:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
        )
        for _ in range(1000):
            response = self.request(request, 12)
            if all(t.error_code == 0 and all(p.leader_id >= 0 for p in t.partitions) for t in response.topics):
                self.topic_ids = {topic.name: topic.topic_id for topic in response.topics}
                return self._wait_until_leaders_serve(response)
        raise AssertionError(f"{self.name}: no leaders for {topics}")

    def _wait_until_leaders_serve(self, metadata: Any) -> None:
        """Wait until all leaders serve: metadata may name a leader before it knows that it leads."""
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic.name,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition_index, timestamp=-1)
                        for partition in topic.partitions
                    ],
                )
                for topic in metadata.topics
            ],
        )
        for _ in range(1000):
            response = self.request(request, 9)
            if all(partition.error_code == 0 for topic in response.topics for partition in topic.partitions):
                return
        raise AssertionError(f"{self.name}: not all partitions have a serving leader")
