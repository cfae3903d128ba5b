"""Clients that try to exhaust a node's memory: compression bombs, and connections aborted in the middle of a frame."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack

from bench.systems.certificate import make_certificate

from headrace.client import Admin
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.apis import ApiKey
from headrace.protocol.headers import request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.batch import BatchHeader
from headrace.records.builder import build_from_section
from headrace.records.compression import Codec
from headrace.testing.processes import LOOPBACK, NodeProcess, free_port

TOPIC = "bombed"
BOMB_BYTES = 192 * 1024 * 1024  # decompressed; more than a node decompresses of one batch
PARTIAL_FRAME_BYTES = 506 * 1024  # just below what an unauthenticated client may send (sasl.server.max.receive.size)
WAIT_S_MAX = 60.0
GROWTH_MB_MAX = 50
SETTLE_S_MAX = 10.0
_PRODUCE_VERSION = 9
_LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")


class AttackedNode:
    """A node with one listener of each security protocol."""

    def __init__(self, directory: Path) -> None:
        certificate = make_certificate(directory / "certificate")
        assert certificate is not None, "openssl is not installed; the TLS listeners need it for their certificate"
        self.ports = {name: free_port() for name in _LISTENERS}
        listeners = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in self.ports.items())
        self.process = NodeProcess(
            {
                "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{free_port()}",
                "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in _LISTENERS)
                + ",CONTROLLER:PLAINTEXT",
                "controller.listener.names": "CONTROLLER",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                **certificate.settings(),
            },
            directory=directory / "node",
        )

    def __enter__(self) -> AttackedNode:
        self.process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.close()

    def resident_mb(self) -> float:
        return self.process.rss_bytes() / 1e6

    def create_topic(self) -> None:
        with Admin({"bootstrap.servers": f"{LOOPBACK}:{self.ports['PLAINTEXT']}"}) as admin:
            admin.create_topics([TOPIC])

    def connect(self, listener: str) -> socket.socket:
        raw = socket.create_connection((LOOPBACK, self.ports[listener]), WAIT_S_MAX)
        if "SSL" not in listener.split("_"):
            return raw
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(raw)

    def send_bombs(self, count: int, codec: Codec) -> None:
        """Send `count` batches that decompress beyond a node's limit. Raise AssertionError if one is not refused."""
        frame = _bomb(codec)
        with self.connect("PLAINTEXT") as client:
            for _ in range(count):
                client.sendall(frame)
                answer = decode_response(ApiKey.PRODUCE, _PRODUCE_VERSION, 1, memoryview(_receive_frame(client)))
                assert answer.responses[0].partition_responses[0].error_code, "a compression bomb was accepted"

    def abort_connections(self, listener: str, count: int) -> None:
        """Open `count` connections one after the other, send most of a frame on each and close it."""
        header = request_header(ApiKey.SASL_AUTHENTICATE if "SASL" in listener else ApiKey.PRODUCE, 1, 1, "x")
        frame = pack(">i", PARTIAL_FRAME_BYTES + 100) + header + bytes(PARTIAL_FRAME_BYTES - len(header))
        for _ in range(count):
            with suppress(ConnectionError), self.connect(listener) as client:
                client.sendall(frame)
        self.ping(listener)

    def ping(self, listener: str) -> None:
        """Wait for a response, after which the node has read everything sent before."""
        with self.connect(listener) as client:
            client.sendall(b"".join(encode_request(ApiVersionsRequest(), 0, 1, "ping")))
            _receive_frame(client)

    def settled_mb(self, limit_mb: float) -> float:
        """Return the resident memory once it is below the limit, or its value after a timeout."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while (resident := self.resident_mb()) > limit_mb and time.monotonic() < deadline:
            time.sleep(0.1)
        return resident


def attack(directory: Path, bombs: int, aborts: int) -> tuple[float, float]:
    """Return a node's resident megabytes before and after the attacks, spread over codecs and listeners."""
    codecs = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)
    with AttackedNode(directory) as node:
        node.create_topic()
        for listener in node.ports:
            node.ping(listener)
        start_mb = node.resident_mb()
        for index, codec in enumerate(codecs):
            node.send_bombs(len(range(index, bombs, len(codecs))), codec)
        for index, listener in enumerate(node.ports):
            node.abort_connections(listener, len(range(index, aborts, len(node.ports))))
        return start_mb, node.settled_mb(start_mb + GROWTH_MB_MAX)


def _bomb(codec: Codec) -> bytes:
    header = BatchHeader(0, 0, -1, 2, 0, int(codec), 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1)
    records = build_from_section(header, bytes(BOMB_BYTES))
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(records))
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
    return b"".join(
        encode_request(ProduceRequest(acks=1, timeout_ms=5000, topic_data=[topic]), _PRODUCE_VERSION, 1, "bomber")
    )


def _receive_frame(client: socket.socket) -> bytes:
    (size,) = unpack(">i", _receive(client, 4))
    return _receive(client, size)


def _receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            raise ConnectionError("the node closed the connection")
        data += more
    return data
