"""Bad input over a real socket: Kafka's error code or a clear log line; the node and its other clients carry on."""

from __future__ import annotations

import contextlib
import logging
from random import Random
from struct import pack

import pytest
from tests.server.raw_client import RawClient, assert_still_serving, batch, make_topic
from tools.prove.differential.batches import BAD

from headrace.base.errors import ErrorCode
from headrace.protocol.apis import ApiKey
from headrace.protocol.headers import request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.records.batch import BatchHeader
from headrace.records.builder import build_from_section
from headrace.records.compression import Codec, compress
from headrace.server import connection_pool as pool
from headrace.testing.cluster import EmbeddedNode

FRAME_BYTES_MAX = 104_857_600
BOMB_BYTES = 160 * 1024 * 1024
SEED = 20_011


@pytest.fixture(autouse=True)
def _log_every_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REFUSAL_LOG_LINES_PER_SECOND", 1_000_000)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 7, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_an_invalid_frame_size_closes_the_connection(
    headrace_session_node: EmbeddedNode, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), RawClient(headrace_session_node) as client:
        client.send(pack(">i", size) + b"\x00" * 16)
        assert client.is_closed()
    assert f"a request of {size} bytes" in caplog.text
    assert_still_serving(headrace_session_node)


def test_the_node_keeps_serving_after_random_bytes(headrace_session_node: EmbeddedNode) -> None:
    """Send random bytes, with a matching size or without one: the node may respond, refuse or wait, nothing else."""
    rng = Random(SEED)
    for _ in range(60):
        with RawClient(headrace_session_node) as client, contextlib.suppress(OSError):
            body = rng.randbytes(rng.randrange(1, 400))
            if rng.random() < 0.7:
                client.send_frame(body)
            else:
                client.send(body)
            client.socket.shutdown(1)
            client.receive(1 << 16)
    assert_still_serving(headrace_session_node)


def test_broken_bodies_of_every_api_log_no_errors(
    headrace_session_node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Send a valid header with a body that is empty or noise."""
    rng = Random(SEED)
    with caplog.at_level(logging.ERROR):
        for key in ApiKey:
            for version in (0, 1, 3, 7, 9, 12):
                for body in (b"", b"\xff" * 7, rng.randbytes(40)):
                    with RawClient(headrace_session_node) as client, contextlib.suppress(OSError):
                        client.send_frame(request_header(key, version, 1, "x") + body)
                        client.socket.shutdown(1)
                        client.receive(1 << 16)
    assert not caplog.records, f"this was not expected: {caplog.text[-2000:]}"
    assert_still_serving(headrace_session_node)


def test_a_truncated_request_closes_the_connection(headrace_session_node: EmbeddedNode) -> None:
    with RawClient(headrace_session_node) as client:
        client.send(pack(">i", 1000) + request_header(ApiKey.PRODUCE, 9, 1, "x") + b"\x00" * 20)
        client.socket.shutdown(1)
        assert client.is_closed()
    assert_still_serving(headrace_session_node)


@pytest.mark.parametrize(("key", "version"), [(9999, 0), (-1, 0), (0, 99), (0, 2), (1, 3), (3, -1), (2, 12), (65, 0)])
def test_unknown_apis_and_versions_close_the_connection(
    headrace_session_node: EmbeddedNode, key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), RawClient(headrace_session_node) as client:
        client.send_frame(pack(">hhih", key, version, 1, -1) + bytes(30))
        assert client.is_closed()
    assert "closed" in caplog.text
    assert_still_serving(headrace_session_node)


def test_api_versions_responds_to_an_unknown_version_in_version_0(headrace_session_node: EmbeddedNode) -> None:
    """Check that it responds in version 0, which all clients can read, and keeps the connection open."""
    with RawClient(headrace_session_node) as client:
        client.send_frame(pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1) + b"\x00\x01\x01\x00")
        response = client.frame()
        assert response is not None
        assert response[:6] == pack(">ih", 7, ErrorCode.UNSUPPORTED_VERSION)
        assert client.send_request(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def test_valid_requests_get_responses_before_garbage_closes_the_connection(headrace_session_node: EmbeddedNode) -> None:
    good = request_header(ApiKey.API_VERSIONS, 0, 5, "x")
    with RawClient(headrace_session_node) as client:
        client.send((pack(">i", len(good)) + good) * 3 + b"\xff" * 64)
        responses = [client.frame() for _ in range(3)]
        assert all(response is not None and response[:4] == pack(">i", 5) for response in responses)
        assert client.is_closed()
    assert_still_serving(headrace_session_node)


def test_unfinished_large_frames_neither_block_other_clients_nor_reserve_memory(
    headrace_session_node: EmbeddedNode,
) -> None:
    """Open forty connections that announce the largest frame and send only a few bytes of it."""
    psutil = pytest.importorskip("psutil")
    before = psutil.Process().memory_info().rss
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(RawClient(headrace_session_node))
            client.send(pack(">i", FRAME_BYTES_MAX) + request_header(ApiKey.PRODUCE, 9, 1, "x"))
        for _ in range(3):
            assert_still_serving(headrace_session_node)
        grown = psutil.Process().memory_info().rss - before
    assert grown < FRAME_BYTES_MAX * 2, f"{grown} bytes for frames that never came"


def test_invalid_batches_are_refused_and_not_appended(headrace_session_node: EmbeddedNode) -> None:
    """Send wrong checksums, magics, counts and lengths; the check `differential` compares the error codes with Kafka."""
    make_topic(headrace_session_node, "bad-batches")
    with RawClient(headrace_session_node) as client:
        start = client.log_end("bad-batches")
        for name, make in BAD.items():
            for seed in range(3):
                response = client.produce("bad-batches", make(Random(seed)))
                assert response is not None, f"{name}: the connection was closed"
                assert response.error_code > 0, f"{name} was answered with {response.error_code}"
        assert client.produce("bad-batches", None).error_code == ErrorCode.INVALID_RECORD
        assert client.log_end("bad-batches") == start
        assert client.produce("bad-batches", batch()).error_code == ErrorCode.NONE
    assert_still_serving(headrace_session_node)


def test_an_invalid_batch_with_acks_0_closes_the_connection(
    headrace_session_node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Check acks=0, which has no response: the only way to report an error is to close the connection."""
    make_topic(headrace_session_node, "unacknowledged")
    broken = batch()
    broken[-1] ^= 1
    with caplog.at_level(logging.WARNING), RawClient(headrace_session_node) as client:
        assert client.produce("unacknowledged", broken, acks=0) is None
    assert "CORRUPT_MESSAGE" in caplog.text
    assert_still_serving(headrace_session_node)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_decompression_bombs_are_refused(codec: Codec) -> None:
    """Send a batch that unpacks into more than a broker may hold; compressed, it is thousands (snappy: 20) times smaller."""
    header = BatchHeader(0, 0, -1, 2, 0, int(codec), 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1)
    bomb = build_from_section(header, bytes(BOMB_BYTES))
    with EmbeddedNode({"message.max.bytes": str(32 << 20)}) as node:
        make_topic(node, "bombs")
        with RawClient(node) as client:
            response = client.produce("bombs", bomb)
            assert response.error_code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD)
            assert client.log_end("bombs") == 0
        assert_still_serving(node)


def test_a_snappy_block_that_declares_a_huge_size_is_refused(headrace_session_node: EmbeddedNode) -> None:
    make_topic(headrace_session_node, "claims")
    header = BatchHeader(0, 0, -1, 2, 0, int(Codec.NONE), 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1)
    snappy_block = b"\xff\xff\xff\xff\x0f" + compress(Codec.SNAPPY, b"x" * 100)[-20:]
    bomb = build_from_section(header, snappy_block)
    from headrace.records import batch as layout

    bomb[22] = int(Codec.SNAPPY)
    bomb[17:21] = layout.checksum(bomb, 0, len(bomb)).to_bytes(4, "big")
    with RawClient(headrace_session_node) as client:
        assert client.produce("claims", bomb).error_code in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)
    assert_still_serving(headrace_session_node)


def test_invalid_sequences_and_producer_epochs_are_refused(headrace_session_node: EmbeddedNode) -> None:
    make_topic(headrace_session_node, "sequences")

    def produce_error_code(epoch: int, sequence: int) -> ErrorCode:
        records = batch(b"a", producer_id=9001, producer_epoch=epoch, base_sequence=sequence)
        return ErrorCode(client.produce("sequences", records).error_code)

    with RawClient(headrace_session_node) as client:
        assert [produce_error_code(1, 0), produce_error_code(1, 1)] == [ErrorCode.NONE, ErrorCode.NONE]
        assert produce_error_code(1, 7) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce_error_code(1, 2**31 - 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce_error_code(0, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert produce_error_code(2, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce_error_code(1, -5) is ErrorCode.INVALID_RECORD
        assert produce_error_code(1, 1) is ErrorCode.NONE  # a duplicate, which gets its original offset
        assert client.log_end("sequences") == 2
        assert produce_error_code(1, 2) is ErrorCode.NONE


@pytest.mark.parametrize(
    "name", ["../evil", "a/b", "/etc", ".", "..", "", "a\x00b", "a\\b", "ü", "x" * 250, "a b", "a\nb"]
)
def test_invalid_topic_names_are_refused_and_create_no_directory(
    headrace_session_node: EmbeddedNode, name: str
) -> None:
    before = {path.name for path in headrace_session_node.data_dir.iterdir() if path.is_dir()}
    with RawClient(headrace_session_node) as client:
        creation = CreateTopicsRequest(
            topics=[CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
            timeout_ms=5000,
        )
        assert client.send_request(creation, 5).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        auto = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        assert client.send_request(auto, 9).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert client.produce(name, batch()).error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    assert {path.name for path in headrace_session_node.data_dir.iterdir() if path.is_dir()} <= before
    assert not (headrace_session_node.data_dir.parent / "evil-0").exists()
    assert_still_serving(headrace_session_node)
