"""The short path of Produce responds byte for byte like the long path and leaves the same log, or declines the request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from struct import pack
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock

from headrace.client.wire.connection import Connection
from headrace.node.configuration.settings import make_settings
from headrace.node.node import Node, Ports
from headrace.protocol.compiler import codec
from headrace.protocol.headers import request_header
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.server.authority import ALLOW_ALL
from headrace.server.context import Peer
from headrace.storage.disk import DiskFiles

NOW_MS = 1_800_000_000_000
PEER = Peer("PLAINTEXT", "127.0.0.1", authority=ALLOW_ALL)


class TwoTopicNode:
    """One node with two identical topics: `aaaa` is produced to on the short path, `bbbb` on the long one."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        settings = make_settings(
            {"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0", "headrace.http.listener": ""},
            single_node=True,
        )
        self.node = self.run(Node.start(settings, Ports(DiskFiles(), FakeClock(NOW_MS), random.Random(3), self.loop)))
        self.run(self._create())
        self.dispatcher = self.node.broker.dispatcher
        self.short_path = self.dispatcher.produce_shortcut

    def run(self, work: Awaitable[Any]) -> Node | None:
        return self.loop.run_until_complete(work)

    async def _create(self) -> None:
        connection = await Connection.connect("127.0.0.1", self.node.ports["PLAINTEXT"])
        topics = [
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
            for name in ("aaaa", "bbbb", "cccc")
        ]
        await connection.request(CreateTopicsRequest(topics=topics))
        await connection.close()

    def close(self) -> None:
        self.run(self.node.kill())
        self.run(asyncio.sleep(0.01))  # cancelled tasks end in a later iteration of the loop
        self.loop.close()

    def frame(
        self,
        topic: str,
        version: int,
        index: int,
        batch: bytes,
        acks: int,
        client_id: str | None,
        transactional_id: str | None,
    ) -> memoryview:
        data = ProduceRequest.TopicProduceData(
            partition_data=[ProduceRequest.PartitionProduceData(index=index, records=batch)]
        )
        if version >= 13:
            data.topic_id = self.node.broker.image.topics[topic].id
        else:
            data.name = topic
        request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[data])
        return memoryview(
            bytearray(request_header(0, version, 77, client_id) + codec(ProduceRequest, version).encode(request))
        )

    def response(self, frame: memoryview) -> bytes:
        response = self.dispatcher.handle(PEER, frame)
        return None if response is None else b"".join(cast("list[bytes]", response))


@pytest.fixture(scope="module")
def two_topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTopicNode]:
    two_topics = TwoTopicNode(tmp_path_factory.mktemp("twins"))
    yield two_topics
    two_topics.close()


BATCHES: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    values=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP]),
    producer=st.sampled_from([(-1, -1, -1), (-1, -1, -1), (5, 0, 0), (5, 0, 3), (6, 0, -1)]),
    age_ms=st.sampled_from([0, 0, 0, 10**12]),
    damage=st.sampled_from(["", "", "", "crc", "magic", "count", "length", "attributes"]),
)


def build(case: Mapping[str, Any]) -> bytes:
    builder = BatchBuilder()
    for value in case["values"]:
        builder.append(NOW_MS + case["age_ms"], None, value)
    producer_id, epoch, sequence = case["producer"]
    batch = builder.build(codec=case["codec"], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    damages = {
        "crc": (17, b"\x01\x02\x03\x04"),
        "magic": (16, b"\x01"),
        "count": (57, pack(">i", 9)),
        "length": (8, pack(">i", 60)),
        "attributes": (22, b"\x20"),
    }
    position, value = damages.get(case["damage"], (0, b""))
    batch[position : position + len(value)] = value
    return bytes(batch)


@settings(deadline=None, max_examples=150)
@given(
    case=BATCHES,
    version=st.integers(8, 13),
    index=st.sampled_from([0, 0, 1, 2]),
    acks=st.sampled_from([1, 1, -1]),
    client_id=st.sampled_from(["c", "", None]),
    transactional_id=st.sampled_from([None, None, None, "t"]),
)
def test_the_short_and_long_paths_respond_and_append_identically(
    two_topics: TwoTopicNode,
    case: dict[str, Any],
    version: int,
    index: int,
    acks: int,
    client_id: str | None,
    transactional_id: str | None,
) -> None:
    batch = build(case)
    a, b = two_topics.node.broker.image.topics["aaaa"], two_topics.node.broker.image.topics["bbbb"]
    two_topics.dispatcher.produce_shortcut = two_topics.short_path
    short = two_topics.response(two_topics.frame("aaaa", version, index, batch, acks, client_id, transactional_id))
    two_topics.dispatcher.produce_shortcut = None
    long = two_topics.response(two_topics.frame("bbbb", version, index, batch, acks, client_id, transactional_id))
    assert short.replace(b"aaaa", b"bbbb").replace(a.id, b.id) == long
    for partition in (0, 1):
        one, two = (two_topics.node.broker.replicas.get(topic, partition).log for topic in ("aaaa", "bbbb"))
        assert one.log_end == two.log_end
        assert one.read(0, 10**9).range.read() == two.read(0, 10**9).range.read()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("version", [9, 12, 13])
def test_an_ordinary_produce_request_takes_the_short_path(two_topics: TwoTopicNode, version: int, codec: Codec) -> None:
    batch = build({"values": [b"x"], "codec": codec, "producer": (-1, -1, -1), "age_ms": 0, "damage": ""})
    assert two_topics.short_path(PEER, two_topics.frame("cccc", version, 0, batch, 1, "client", None)) is not None
    assert two_topics.short_path(PEER, two_topics.frame("cccc", version, 0, batch, 0, "client", None)) is None


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 60), st.binary(min_size=1, max_size=4))
def test_the_short_path_declines_or_responds_to_malformed_frames(
    two_topics: TwoTopicNode, noise: bytes, position: int, replacement: bytes
) -> None:
    batch = build({"values": [b"x"], "codec": Codec.NONE, "producer": (-1, -1, -1), "age_ms": 0, "damage": ""})
    frame = bytearray(two_topics.frame("cccc", 9, 0, batch, 1, "client", None))
    frame[position : position + len(replacement)] = replacement
    for hostile in (bytearray(b"\0\0\0\x09" + noise), frame, frame[:position]):
        response = two_topics.short_path(PEER, memoryview(hostile))
        assert response is None or (isinstance(response, list) and isinstance(response[0], bytes))
