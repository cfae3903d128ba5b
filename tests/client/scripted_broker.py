"""A broker that sends scripted responses over a real connection, also those that no honest broker would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any

from headrace.base.errors import ErrorCode
from headrace.base.ids import Uuid
from headrace.client.wire.cluster import Cluster
from headrace.protocol.apis import REQUESTS, RESPONSES, ApiKey
from headrace.protocol.compiler import codec
from headrace.protocol.headers import read_request_header, response_header
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.list_offsets import ListOffsetsResponse
from headrace.protocol.messages.metadata import MetadataResponse

HOST = "127.0.0.1"
TOPIC, TOPIC_ID = "t", Uuid(b"0123456789abcdef")
VERSIONS = {ApiKey.API_VERSIONS: (0, 3), ApiKey.METADATA: (10, 12), ApiKey.FETCH: (4, 16), ApiKey.LIST_OFFSETS: (4, 7)}
_SIZE = Struct(">i")

FetchHandler = Callable[[FetchRequest], FetchResponse]


class ScriptedBroker:
    def __init__(self, fetch: FetchHandler, *, partitions: int = 1, end: int = 100) -> None:
        self.fetch = fetch
        self.partitions = partitions
        self.end = end
        self.topic_id = TOPIC_ID
        self.port = 0
        self.is_silent = False  # whether requests get no responses
        self.fetch_requests: list[FetchRequest] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = _SIZE.unpack(await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, correlation, _, position = read_request_header(frame)
                response = self.response(key, codec(REQUESTS[key], version).decode(frame, position))
                body = response_header(key, version, correlation) + codec(RESPONSES[key], version).encode(response)
                if not self.is_silent:
                    writer.write(_SIZE.pack(len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def response(self, key: int, request: Any) -> Any:
        if key == ApiKey.API_VERSIONS:
            kinds = [ApiVersionsResponse.ApiVersion(api, *span) for api, span in VERSIONS.items()]
            return ApiVersionsResponse(api_keys=kinds)
        if key == ApiKey.METADATA:
            return self._metadata()
        if key == ApiKey.LIST_OFFSETS:
            return ListOffsetsResponse(topics=[self._offsets(topic) for topic in request.topics])
        assert key == ApiKey.FETCH
        self.fetch_requests.append(request)
        return self.fetch(request)

    def _metadata(self) -> MetadataResponse:
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=index, leader_id=1, leader_epoch=3, replica_nodes=[1], isr_nodes=[1]
            )
            for index in range(self.partitions)
        ]
        topic = MetadataResponse.MetadataResponseTopic(name=TOPIC, topic_id=self.topic_id, partitions=partitions)
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host=HOST, port=self.port)
        return MetadataResponse(brokers=[broker], topics=[topic])

    def _offsets(self, topic: Any) -> ListOffsetsResponse.ListOffsetsTopicResponse:
        return ListOffsetsResponse.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=one.partition_index, offset=0 if one.timestamp == -2 else self.end
                )
                for one in topic.partitions
            ],
        )


@asynccontextmanager
async def served(broker: ScriptedBroker) -> AsyncIterator[Cluster]:
    server = await asyncio.start_server(broker.serve, HOST, 0)
    broker.port = server.sockets[0].getsockname()[1]
    cluster = Cluster([(HOST, broker.port)], timeout_s=5.0)
    try:
        yield cluster
    finally:
        await cluster.close()
        server.close()
        await server.wait_closed()


def fetched(data: bytes, *, code: ErrorCode = ErrorCode.NONE, end: int = 100, **more: Any) -> FetchResponse:
    """Return a response for partition 0."""
    partition = FetchResponse.PartitionData(
        error_code=code, high_watermark=end, last_stable_offset=end, log_start_offset=0, records=data, **more
    )
    topic = FetchResponse.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
    return FetchResponse(responses=[topic])
