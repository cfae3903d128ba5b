"""Bad input over a real socket: Kafka's error code or a clear log line; the node and its other clients carry on."""

from __future__ import annotations

import contextlib
import logging
from random import Random
from struct import pack

import pytest
from raw_client import RawClient, assert_it_still_serves, batch, make_topic
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
from headrace.server import connection_pool as company
from headrace.testing.cluster import EmbeddedNode

FRAME_BYTES_MAX = 104_857_600
BOMB_BYTES = 160 * 1024 * 1024
SEED = 20_011


@pytest.fixture(autouse=True)
def _every_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(company, "REFUSALS_TOLD_MAX", 1_000_000)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 7, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_size_that_cannot_be(headrace_cluster: EmbeddedNode, size: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), RawClient(headrace_cluster) as client:
        client.send(pack(">i", size) + b"\x00" * 16)
        assert client.is_closed()
    assert f"a request of {size} bytes" in caplog.text
    assert_it_still_serves(headrace_cluster)


def test_garbage(headrace_cluster: EmbeddedNode) -> None:
    """Send random bytes, with a matching size or without one: the node may respond, refuse or wait, nothing else."""
    chance = Random(SEED)
    for _ in range(60):
        with RawClient(headrace_cluster) as client, contextlib.suppress(OSError):
            body = chance.randbytes(chance.randrange(1, 400))
            if chance.random() < 0.7:
                client.send_frame(body)
            else:
                client.send(body)
            client.socket.shutdown(1)
            client.receive(1 << 16)
    assert_it_still_serves(headrace_cluster)


def test_every_api_with_a_broken_body(headrace_cluster: EmbeddedNode, caplog: pytest.LogCaptureFixture) -> None:
    """Send a valid header with a body that is empty or noise."""
    chance = Random(SEED)
    with caplog.at_level(logging.ERROR):
        for key in ApiKey:
            for version in (0, 1, 3, 7, 9, 12):
                for body in (b"", b"\xff" * 7, chance.randbytes(40)):
                    with RawClient(headrace_cluster) as client, contextlib.suppress(OSError):
                        client.send_frame(request_header(key, version, 1, "x") + body)
                        client.socket.shutdown(1)
                        client.receive(1 << 16)
    assert not caplog.records, f"this was not expected: {caplog.text[-2000:]}"
    assert_it_still_serves(headrace_cluster)


def test_a_request_that_breaks_off(headrace_cluster: EmbeddedNode) -> None:
    with RawClient(headrace_cluster) as client:
        client.send(pack(">i", 1000) + request_header(ApiKey.PRODUCE, 9, 1, "x") + b"\x00" * 20)
        client.socket.shutdown(1)
        assert client.is_closed()
    assert_it_still_serves(headrace_cluster)


@pytest.mark.parametrize(("key", "version"), [(9999, 0), (-1, 0), (0, 99), (0, 2), (1, 3), (3, -1), (2, 12), (65, 0)])
def test_unknown_apis_and_versions(
    headrace_cluster: EmbeddedNode, key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), RawClient(headrace_cluster) as client:
        client.send_frame(pack(">hhih", key, version, 1, -1) + bytes(30))
        assert client.is_closed()
    assert "closed" in caplog.text
    assert_it_still_serves(headrace_cluster)


def test_api_versions_answers_a_version_that_nobody_knows(headrace_cluster: EmbeddedNode) -> None:
    """Check that it responds in version 0, which all clients can read, and keeps the connection open."""
    with RawClient(headrace_cluster) as client:
        client.send_frame(pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1) + b"\x00\x01\x01\x00")
        answer = client.frame()
        assert answer is not None
        assert answer[:6] == pack(">ih", 7, ErrorCode.UNSUPPORTED_VERSION)
        assert client.ask(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def test_good_requests_are_answered_before_the_garbage_behind_them(headrace_cluster: EmbeddedNode) -> None:
    good = request_header(ApiKey.API_VERSIONS, 0, 5, "x")
    with RawClient(headrace_cluster) as client:
        client.send((pack(">i", len(good)) + good) * 3 + b"\xff" * 64)
        answers = [client.frame() for _ in range(3)]
        assert all(answer is not None and answer[:4] == pack(">i", 5) for answer in answers)
        assert client.is_closed()
    assert_it_still_serves(headrace_cluster)


def test_slow_clients_hold_up_nobody(headrace_cluster: EmbeddedNode) -> None:
    """Open forty connections that announce the largest frame and send only a few bytes of it."""
    psutil = pytest.importorskip("psutil")
    before = psutil.Process().memory_info().rss
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(RawClient(headrace_cluster))
            client.send(pack(">i", FRAME_BYTES_MAX) + request_header(ApiKey.PRODUCE, 9, 1, "x"))
        for _ in range(3):
            assert_it_still_serves(headrace_cluster)
        grown = psutil.Process().memory_info().rss - before
    assert grown < FRAME_BYTES_MAX * 2, f"{grown} bytes for frames that never came"


def test_every_bad_batch_is_refused_and_nothing_is_appended(headrace_cluster: EmbeddedNode) -> None:
    """Send wrong checksums, magics, counts and lengths; the check `differential` compares the error codes with Kafka."""
    make_topic(headrace_cluster, "bad-batches")
    with RawClient(headrace_cluster) as client:
        start = client.log_end("bad-batches")
        for name, make in BAD.items():
            for seed in range(3):
                answer = client.produce("bad-batches", make(Random(seed)))
                assert answer is not None, f"{name}: the connection was closed"
                assert answer.error_code > 0, f"{name} was answered with {answer.error_code}"
        assert client.produce("bad-batches", None).error_code == ErrorCode.INVALID_RECORD
        assert client.log_end("bad-batches") == start
        assert client.produce("bad-batches", batch()).error_code == ErrorCode.NONE
    assert_it_still_serves(headrace_cluster)


def test_a_bad_batch_without_acknowledgement_ends_the_connection(
    headrace_cluster: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Check acks=0, which has no response: the only way to report an error is to close the connection."""
    make_topic(headrace_cluster, "unacknowledged")
    broken = batch()
    broken[-1] ^= 1
    with caplog.at_level(logging.WARNING), RawClient(headrace_cluster) as client:
        assert client.produce("unacknowledged", broken, acks=0) is None
    assert "CORRUPT_MESSAGE" in caplog.text
    assert_it_still_serves(headrace_cluster)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_compression_bombs(codec: Codec) -> None:
    """Send a batch that unpacks into more than a broker may hold; compressed, it is thousands (snappy: 20) times smaller."""
    header = BatchHeader(0, 0, -1, 2, 0, int(codec), 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1)
    bomb = build_from_section(header, bytes(BOMB_BYTES))
    with EmbeddedNode({"message.max.bytes": str(32 << 20)}) as node:
        make_topic(node, "bombs")
        with RawClient(node) as client:
            answer = client.produce("bombs", bomb)
            assert answer.error_code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD)
            assert client.log_end("bombs") == 0
        assert_it_still_serves(node)


def test_a_snappy_block_that_claims_to_be_huge(headrace_cluster: EmbeddedNode) -> None:
    make_topic(headrace_cluster, "claims")
    header = BatchHeader(0, 0, -1, 2, 0, int(Codec.NONE), 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1)
    claim = b"\xff\xff\xff\xff\x0f" + compress(Codec.SNAPPY, b"x" * 100)[-20:]
    bomb = build_from_section(header, claim)
    from headrace.records import batch as layout

    bomb[22] = int(Codec.SNAPPY)
    bomb[17:21] = layout.checksum(bomb, 0, len(bomb)).to_bytes(4, "big")
    with RawClient(headrace_cluster) as client:
        assert client.produce("claims", bomb).error_code in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)
    assert_it_still_serves(headrace_cluster)


def test_sequences_that_cannot_be(headrace_cluster: EmbeddedNode) -> None:
    make_topic(headrace_cluster, "sequences")

    def sent(epoch: int, sequence: int) -> ErrorCode:
        records = batch(b"a", producer_id=9001, producer_epoch=epoch, base_sequence=sequence)
        return ErrorCode(client.produce("sequences", records).error_code)

    with RawClient(headrace_cluster) as client:
        assert [sent(1, 0), sent(1, 1)] == [ErrorCode.NONE, ErrorCode.NONE]
        assert sent(1, 7) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert sent(1, 2**31 - 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert sent(0, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert sent(2, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert sent(1, -5) is ErrorCode.INVALID_RECORD
        assert sent(1, 1) is ErrorCode.NONE  # a duplicate, which gets its original offset
        assert client.log_end("sequences") == 2
        assert sent(1, 2) is ErrorCode.NONE


@pytest.mark.parametrize(
    "name", ["../evil", "a/b", "/etc", ".", "..", "", "a\x00b", "a\\b", "ü", "x" * 250, "a b", "a\nb"]
)
def test_topic_names_with_path_separators_and_worse(headrace_cluster: EmbeddedNode, name: str) -> None:
    before = {path.name for path in headrace_cluster.data_dir.iterdir() if path.is_dir()}
    with RawClient(headrace_cluster) as client:
        creation = CreateTopicsRequest(
            topics=[CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
            timeout_ms=5000,
        )
        assert client.ask(creation, 5).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        auto = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        assert client.ask(auto, 9).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert client.produce(name, batch()).error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    assert {path.name for path in headrace_cluster.data_dir.iterdir() if path.is_dir()} <= before
    assert not (headrace_cluster.data_dir.parent / "evil-0").exists()
    assert_it_still_serves(headrace_cluster)
