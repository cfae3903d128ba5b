"""Single requests to a broker over a blocking socket: for the set-up of a measurement, never inside one."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bench.errors import BenchFailed
from headrace.base.errors import ErrorCode
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.framing import SIZE
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.testing.processes import LOOPBACK

CLIENT_ID = "bench"
RESPONSE_S_MAX = 120.0
READY_S_MAX = 120.0
RETRY_S = 0.02
CREATE_TOPICS_VERSION = 5
DELETE_TOPICS_VERSION = 5
INIT_PRODUCER_ID_VERSION = 4
LIST_OFFSETS_VERSION = 6
METADATA_VERSION = 9
DESCRIBE_QUORUM_VERSION = 1
TIMEOUT_MS = 60_000
LATEST, EARLIEST = -1, -2  # special timestamps: the end offset and the first offset


class Connection:
    """A blocking connection with one request at a time. OSError propagates when it breaks."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), RESPONSE_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(self, message: Any, version: int) -> Any:
        """Send a request and return the decoded response."""
        self._correlation_id += 1
        frame = b"".join(encode_request(message, version, self._correlation_id, CLIENT_ID))
        response = memoryview(self.exchange(frame))
        return decode_response(message.facts.api_key, version, self._correlation_id, response)

    def exchange(self, frame: bytes) -> bytes:
        """Send a complete frame and return the response without its size."""
        self._socket.sendall(frame)
        (size,) = SIZE.unpack(self._receive(SIZE.size))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            data += more
        return bytes(data)


def create_topic(connection: Connection, name: str, partitions: int, replicas: int = 1) -> None:
    create_topics(connection, [name], partitions, replicas)


def create_topics(connection: Connection, names: Sequence[str], partitions: int, replicas: int) -> None:
    topics = [
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
        for name in names
    ]
    response = connection.request(CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS), CREATE_TOPICS_VERSION)
    for topic in response.topics:
        _check(topic.error_code, f"creating {topic.name}")


def delete_topic(connection: Connection, name: str) -> None:
    delete_topics(connection, [name])


def delete_topics(connection: Connection, names: Sequence[str]) -> None:
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=TIMEOUT_MS)
    response = connection.request(request, DELETE_TOPICS_VERSION)
    for topic in response.responses:
        _check(topic.error_code, f"deleting {topic.name}")


def new_producer_id(connection: Connection) -> tuple[int, int]:
    """Return a new producer id and epoch."""
    deadline = time.monotonic() + READY_S_MAX
    while True:
        response = connection.request(InitProducerIdRequest(transactional_id=None), INIT_PRODUCER_ID_VERSION)
        retry = response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # Kafka is allocating its first id block
        if not retry or time.monotonic() > deadline:
            break
        time.sleep(RETRY_S)
    _check(response.error_code, "requesting a producer id")
    return response.producer_id, response.producer_epoch


class TopicState(NamedTuple):
    """What a broker's metadata says of a topic, by partition; a partition without a leader has leader 0."""

    leaders: list[int]
    in_sync: list[int]  # sizes of the ISRs


def describe_topic(connection: Connection, name: str) -> TopicState | None:
    """Return the topic's state, or None if the broker does not know the topic."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    (topic,) = connection.request(request, METADATA_VERSION).topics
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    _check(topic.error_code, f"describing {name}")
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicState(
        [max(partition.leader_id, 0) for partition in partitions],
        [len(partition.isr_nodes) for partition in partitions],
    )


def active_controller(connection: Connection) -> int:
    """Return the id of the node that leads the metadata quorum."""
    partitions = [DescribeQuorumRequest.PartitionData(partition_index=0)]
    topics = [DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=partitions)]
    response = connection.request(DescribeQuorumRequest(topics=topics), DESCRIBE_QUORUM_VERSION)
    _check(response.error_code, "describing the quorum")
    return int(response.topics[0].partitions[0].leader_id)


def has_leaders(connection: Connection, name: str, *, create: bool = False) -> bool:
    topics = [MetadataRequest.MetadataRequestTopic(name=name)]
    response = connection.request(MetadataRequest(topics=topics, allow_auto_topic_creation=create), METADATA_VERSION)
    (topic,) = response.topics
    codes = [topic.error_code, *(partition.error_code for partition in topic.partitions)]
    return len(codes) > 1 and not any(codes)


def serves_partitions(connection: Connection, name: str, indexes: Iterable[int]) -> bool:
    """Return whether a broker serves these partitions; metadata may list a leader before it knows that it leads."""
    wanted = [ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=EARLIEST) for index in indexes]
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=wanted)]
    response = connection.request(ListOffsetsRequest(topics=topics), LIST_OFFSETS_VERSION)
    return not any(partition.error_code for topic in response.topics for partition in topic.partitions)


def end_offset(connection: Connection, name: str, partition: int = 0) -> int:
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[wanted])])
    (found,) = connection.request(request, LIST_OFFSETS_VERSION).topics[0].partitions
    _check(found.error_code, f"requesting the end offset of {name}")
    return int(found.offset)


def wait_until_served(connection: Connection, name: str, partitions: int) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while not (has_leaders(connection, name) and serves_partitions(connection, name, range(partitions))):
        if time.monotonic() > deadline:
            raise BenchFailed(f"{name} is not served after {READY_S_MAX:.0f} s")
        time.sleep(RETRY_S)


def _check(code: int, action: str) -> None:
    if code != ErrorCode.NONE:
        name = str(code)
        with contextlib.suppress(ValueError):
            name = ErrorCode(code).name
        raise BenchFailed(f"{action} failed with {name}")
