"""TLS listeners over real sockets: certificates of both sides, invalid and expired ones, garbage, and reloads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.security.pem_files import Authority, needs_openssl, openssl

from headrace.base.errors import ConfigError
from headrace.base.metrics import Counter, Metrics
from headrace.client.wire.connection import Connection
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.security.principal_mapping import principal_mapping
from headrace.security.resources import Need, Operation, Resource
from headrace.server import tls_transport
from headrace.server.dispatch import Dispatcher, Service
from headrace.server.listener import Listener, ListenerSettings, Security
from headrace.server.tls import Tls, TlsSettings
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

pytestmark = needs_openssl
NOW_MS = 4_000_000_000_000  # far in the future; used only by the tests of expiry
PRINCIPAL_SERVICE = Service(
    ApiKey.DESCRIBE_CLUSTER,
    (0, 2),
    lambda context, request: DescribeClusterResponse(cluster_id=str(context.peer.principal)),
    Need(Resource.NONE, Operation.NONE),
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[Path, Path, Path]:
    return authority.issue("server", "/CN=localhost")


@pytest.fixture(scope="module")
def alice(authority: Authority) -> tuple[Path, Path, Path]:
    return authority.issue("alice", "/O=Example/OU=Sales/CN=alice")


def make_tls(server: tuple[Path, Path, Path], authority: Authority, now_ms: int = 0, **options: Any) -> Tls:
    _, _, store = server
    return Tls(
        TlsSettings("SSL", keystore=str(store), truststore=str(authority.certificate), **options), lambda: now_ms
    )


class CountingListener(Listener):
    """A listener whose counter of failed handshakes a test can read."""

    failed: Counter


@contextlib.asynccontextmanager
async def listening(tls: Tls) -> AsyncIterator[CountingListener]:
    metrics = Metrics()
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher({PRINCIPAL_SERVICE.key: PRINCIPAL_SERVICE}, lambda version: b"", metrics, loop)
    listener = CountingListener(ListenerSettings("SSL", "127.0.0.1", 0), dispatcher, metrics, loop, Security(tls))
    await listener.open()
    await listener.serve()
    listener.failed = listener._counters.failed
    try:
        yield listener
    finally:
        listener.stop()
        await asyncio.sleep(0)


def client_context(
    authority: Authority, identity: tuple[Path, Path, Path] | None = None, version: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if identity is not None:
        key, certificate, _ = identity
        context.load_cert_chain(str(certificate), str(key))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


async def request_principal(port: int, context: ssl.SSLContext) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        writer.write(b"".join(encode_request(DescribeClusterRequest(), 2, 1, "test")))
        size = int.from_bytes(await reader.readexactly(4), "big")
        frame = await reader.readexactly(size)
        return decode_response(ApiKey.DESCRIBE_CLUSTER, 2, 1, memoryview(frame)).cluster_id
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def expect_refusal(listener: CountingListener, port: int, context: ssl.SSLContext) -> None:
    before = listener.failed.value
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await request_principal(port, context)
    while listener.failed.value == before:
        await asyncio.sleep(0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_is_anonymous(
    server: tuple[Path, Path, Path], authority: Authority, version: ssl.TLSVersion
) -> None:
    async def run() -> None:
        async with listening(make_tls(server, authority)) as listener:
            assert (
                await request_principal(listener.port, client_context(authority, version=version)) == "User:ANONYMOUS"
            )

    asyncio.run(run())


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_the_principal_is_the_subject_of_the_client_certificate(
    server: tuple[Path, Path, Path], authority: Authority, alice: tuple[Path, Path, Path], client_auth: str
) -> None:
    async def run() -> None:
        async with listening(make_tls(server, authority, client_auth=client_auth)) as listener:
            assert (
                await request_principal(listener.port, client_context(authority, alice))
                == "User:CN=alice,OU=Sales,O=Example"
            )

    asyncio.run(run())


def test_mapping_rules_map_the_principal_and_refuse_unmatched_subjects(
    server: tuple[Path, Path, Path], authority: Authority, alice: tuple[Path, Path, Path]
) -> None:
    async def run() -> None:
        for rules, name in (("RULE:^CN=(.*?),.*$/$1/U", "User:ALICE"), ("RULE:^CN=bob$/x/", None)):
            tls = make_tls(server, authority, client_auth="required", map_name=principal_mapping(rules))
            async with listening(tls) as listener:
                if name is not None:
                    assert await request_principal(listener.port, client_context(authority, alice)) == name
                else:
                    await expect_refusal(listener, listener.port, client_context(authority, alice))

    asyncio.run(run())


def test_missing_expired_and_untrusted_client_certificates_are_refused(
    server: tuple[Path, Path, Path], authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expired = authority.issue("expired", "/CN=late", days=-1)
    stranger = Authority(tmp_path, "stranger").issue("mallory", "/CN=alice")

    async def run() -> None:
        async with listening(make_tls(server, authority, client_auth="required")) as listener:
            for identity in (None, expired, stranger):
                caplog.clear()
                await expect_refusal(listener, listener.port, client_context(authority, identity))
                (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
                assert "127.0.0.1" in line.getMessage() and line.exc_info is None
            assert (
                await request_principal(listener.port, client_context(authority, authority.issue("good", "/CN=good")))
                == "User:CN=good"
            )

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_a_client_refuses_a_server_whose_certificate_expired(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    late = authority.issue("late", "/CN=localhost", days=-1)

    async def run() -> None:
        async with listening(make_tls(late, authority, now_ms=NOW_MS)) as listener:
            with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
                await request_principal(listener.port, client_context(authority))
            while not listener.failed.value:
                await asyncio.sleep(0)

    asyncio.run(run())
    assert any("has expired; clients will refuse it" in record.getMessage() for record in caplog.records)


def test_connections_that_do_not_speak_tls_are_closed(
    server: tuple[Path, Path, Path], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with listening(make_tls(server, authority)) as listener:
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10" + bytes(16), bytes(range(256)) * 100, b""):
                before = listener.failed.value
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(garbage)
                if not garbage:
                    writer.close()
                with contextlib.suppress(OSError):
                    await reader.read()
                while listener.failed.value == before:
                    await asyncio.sleep(0)
                writer.close()
            assert await request_principal(listener.port, client_context(authority)) == "User:ANONYMOUS"

    asyncio.run(run())
    assert not any(record.exc_info for record in caplog.records)


def test_a_stalled_handshake_times_out(
    server: tuple[Path, Path, Path], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKE_S_MAX", 0.05)

    async def run() -> None:
        async with listening(make_tls(server, authority)) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            assert await reader.read() == b""
            while not listener.failed.value:
                await asyncio.sleep(0)
            writer.close()

    asyncio.run(run())


def test_a_changed_keystore_is_reloaded_and_a_bad_one_is_ignored(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        _, _, store = authority.issue("rotating", "/CN=localhost")
        old_text = store.read_text()
        tls = Tls(TlsSettings("SSL", keystore=str(store)), lambda: 0)
        async with listening(tls) as listener:
            old = await certificate_serial(listener.port, authority)
            tls.reload_changed_files()
            assert await certificate_serial(listener.port, authority) == old
            other_key, other_certificate, _ = authority.issue("other", "/CN=localhost")
            for bad in (
                "",
                "nonsense",
                old_text.split("-----BEGIN PRIVATE")[0],
                other_certificate.read_text() + old_text[old_text.index("-----BEGIN PRIVATE") :],
            ):
                store.write_text(bad)
                caplog.clear()
                for _ in range(3):
                    tls.reload_changed_files()
                assert len(caplog.records) == 1, "what is wrong is said once"
                assert await certificate_serial(listener.port, authority) == old
            store.unlink()
            caplog.clear()
            for _ in range(3):
                tls.reload_changed_files()
            assert len(caplog.records) == 1
            store.write_text(other_certificate.read_text() + other_key.read_text())
            tls.reload_changed_files()
            assert await certificate_serial(listener.port, authority) != old

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())


async def certificate_serial(port: int, authority: Authority) -> str:
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=client_context(authority), server_hostname="localhost"
    )
    try:
        return writer.get_extra_info("peercert")["serialNumber"]
    finally:
        writer.close()


def test_an_expired_new_certificate_does_not_replace_a_good_one(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, store = authority.issue("replaced", "/CN=localhost")
    tls = Tls(TlsSettings("SSL", keystore=str(store)), lambda: 0)
    context = tls.context
    tls._now_ms = lambda: NOW_MS
    _, _, late = authority.issue("too-late", "/CN=localhost")
    store.write_text(late.read_text())
    tls.reload_changed_files()
    assert tls.context is context and "expired" in caplog.text


def test_pem_texts_on_one_line_are_accepted_instead_of_files(
    server: tuple[Path, Path, Path], authority: Authority
) -> None:
    key, certificate, _ = server
    joined: dict[str, Any] = {
        name: path.read_text().replace("\n", " ") for name, path in (("key", key), ("certificate_chain", certificate))
    }

    async def run() -> None:
        tls = Tls(TlsSettings("SSL", **joined), lambda: 0)
        async with listening(tls) as listener:
            assert await request_principal(listener.port, client_context(authority)) == "User:ANONYMOUS"

    asyncio.run(run())


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    _, _, store = authority.issue("locked", "/CN=localhost", password="geheim")
    assert "ENCRYPTED PRIVATE KEY" in store.read_text()
    Tls(TlsSettings("SSL", keystore=str(store), key_password="geheim"), lambda: 0)
    for password in (None, "wrong"):
        with pytest.raises(ConfigError) as error:
            Tls(TlsSettings("SSL", keystore=str(store), key_password=password), lambda: 0)
        assert "geheim" not in str(error.value) and "wrong" not in str(error.value)


def test_only_the_configured_protocols_and_cipher_suites_are_accepted(
    server: tuple[Path, Path, Path], authority: Authority
) -> None:
    async def run() -> None:
        settings: dict[str, Any] = {"protocols": ("TLSv1.2",), "ciphers": ("ECDHE-ECDSA-AES256-GCM-SHA384",)}
        async with listening(make_tls(server, authority, **settings)) as listener:
            context = client_context(authority)
            _, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=context, server_hostname="localhost"
            )
            assert writer.get_extra_info("cipher")[:2] == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2")
            writer.close()
            await expect_refusal(listener, listener.port, client_context(authority, version=ssl.TLSVersion.TLSv1_3))
            context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
            await expect_refusal(listener, listener.port, context)

    asyncio.run(run())


def test_pipelined_requests_get_their_responses_in_order(server: tuple[Path, Path, Path], authority: Authority) -> None:
    """Check that data sent along with the end of the handshake is kept and that fragments are reassembled."""

    async def run() -> None:
        async with listening(make_tls(server, authority)) as listener:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=client_context(authority), server_hostname="localhost"
            )
            for number in range(2000):
                writer.write(b"".join(encode_request(DescribeClusterRequest(), 2, number, "x" * 100)))
            for number in range(2000):
                size = int.from_bytes(await reader.readexactly(4), "big")
                assert int.from_bytes((await reader.readexactly(size))[:4], "big") == number
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("missing", ["absent.pem", "."])
def test_the_error_for_an_unreadable_keystore_names_the_option(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location="):
        Tls(TlsSettings("SSL", keystore=str(tmp_path / missing)), lambda: 0)


def test_a_pkcs12_keystore_is_refused(server: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, _, store = server
    binary = tmp_path / "store.p12"
    openssl("pkcs12", "-export", "-in", store, "-out", binary, "-passout", "pass:x")
    with pytest.raises(ConfigError):
        Tls(TlsSettings("SSL", keystore=str(binary)), lambda: 0)


def test_altering_the_keystore_location_replaces_the_certificate_at_runtime(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Alter it like Kafka's operators do, with kafka-configs.

    kafka-configs --alter --entity-type brokers --add-config listener.name.ssl.ssl.keystore.location=…
    """
    _, _, first = authority.issue("before", "/CN=localhost")
    _, _, second = authority.issue("after", "/CN=localhost")
    given = {
        "listeners": f"PLAINTEXT://{LOOPBACK}:0,SSL://{LOOPBACK}:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(first),
    }

    async def alter(node: EmbeddedNode, path: Path | str) -> None:
        config = IncrementalAlterConfigsRequest.AlterableConfig(
            name="listener.name.ssl.ssl.keystore.location", value=str(path)
        )
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="1", configs=[config]
        )
        connection = await Connection.connect(LOOPBACK, node.port)
        response = await connection.request(IncrementalAlterConfigsRequest(resources=[resource]), version=1)
        assert response.responses[0].error_code == 0
        while node.node.broker.image.config(4, "1").get(config.name) != str(path):
            await asyncio.sleep(0.01)
        await connection.close()

    async def run(node: EmbeddedNode) -> None:
        port = node.node.ports["SSL"]
        old = await certificate_serial(port, authority)
        await alter(node, "/nowhere.pem")
        assert await certificate_serial(port, authority) == old and "SSL keeps its certificate" in caplog.text
        await alter(node, second)
        assert await certificate_serial(port, authority) != old

    with EmbeddedNode(given) as node:
        asyncio.run(run(node))
