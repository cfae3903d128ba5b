"""TLS at the door: contexts made of PEM texts, made anew when the files change, and the handshake of each connection.

A connection is accepted in the clear and upgraded with the context of that moment, so that a new certificate counts for the next
client. What goes wrong in a handshake is one line in the log and a count.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import ConfigError, HeadraceError
from headrace.security.certificates import BadCertificate, certificates_in, read_certificate
from headrace.security.pem import pem_blocks
from headrace.security.principals import ANONYMOUS, USER, Principal
from headrace.server.connection import Connection

log = logging.getLogger(__name__)

HANDSHAKE_S_MAX = 10.0
SHUTDOWN_S_MAX = 5.0
PEM_BYTES_MAX = 1 << 20
EARLY_BYTES = 64 * 1024  # what a client sends with the end of its handshake
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSettings(Struct, frozen=True):
    """Of one listener. Either a file or texts, for the key with its chain and for those who are trusted."""

    listener: str
    keystore: str | None = None
    certificate_chain: str | None = None
    key: str | None = None
    key_password: str | None = None
    truststore: str | None = None
    trusted: str | None = None
    client_auth: str = "none"
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()  # in OpenSSL's names, for TLS 1.2; empty: its defaults
    map_name: Callable[[str], str | None] = str


class Tls:
    def __init__(self, settings: TlsSettings, now_ms: Callable[[], int]) -> None:
        """ConfigError if no context can be made."""
        self.settings = settings
        self._now_ms = now_ms
        self._texts = _gather(settings)
        self.context = _make_context(settings, *self._texts)
        self._check_validity(self._texts[0], reload=False)

    def look_again(self) -> None:
        """Takes changed files over. What cannot be used is said once, and the old context stays."""
        try:
            texts = _gather(self.settings)
        except HeadraceError as error:
            texts = (str(error), None)
            if texts != self._texts:
                log.warning("%s keeps its certificate: %s", self.settings.listener, error)
                self._texts = texts
            return
        if texts == self._texts:
            return
        self._texts = texts
        try:
            context = _make_context(self.settings, *texts)
            self._check_validity(texts[0], reload=True)
        except HeadraceError as error:
            log.warning("%s keeps its certificate, the new files cannot be used: %s", self.settings.listener, error)
            return
        self.context = context
        log.info("%s has a new certificate or truststore", self.settings.listener)

    def take_over(self, settings: TlsSettings) -> None:
        """Other files or texts than before, while it runs; ConfigError if they cannot be used, and then nothing changes."""
        settings = replace(settings, map_name=self.settings.map_name)
        if settings == self.settings:
            return
        texts = _gather(settings)
        context = _make_context(settings, *texts)
        self._check_validity(texts[0], reload=True)
        self.settings, self._texts, self.context = settings, texts, context
        log.info("%s has a new certificate or truststore", settings.listener)

    def principal(self, transport: asyncio.BaseTransport) -> Principal:
        """By the certificate of the other side; HeadraceError if it cannot be made a name."""
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        subject = read_certificate(certificate).subject
        name = self.settings.map_name(subject)
        if name is None:
            raise HeadraceError(f"no rule of ssl.principal.mapping.rules fits {subject!r}")
        return Principal(USER, name)

    def _check_validity(self, own: str, *, reload: bool) -> None:
        certificate = read_certificate(certificates_in(pem_blocks(own))[0])
        if certificate.not_after_ms < self._now_ms():
            text = f"the certificate of {certificate.subject} has expired"
            if reload:
                raise ConfigError(text)
            log.warning("%s: %s; clients will refuse it", self.settings.listener, text)


def _gather(settings: TlsSettings) -> tuple[str, str | None]:
    """The PEM texts of key and chain, and of those who are trusted."""
    if settings.keystore is not None:
        own = _read(settings, "ssl.keystore.location", settings.keystore)
    else:
        own = f"{settings.certificate_chain or ''}\n{settings.key or ''}"
    trusted = settings.trusted
    if settings.truststore is not None:
        trusted = _read(settings, "ssl.truststore.location", settings.truststore)
    return own, trusted


def _read(settings: TlsSettings, option: str, path: str) -> str:
    try:
        # Not through the Files port: it opens for writing, and a key is often read-only.
        with open(path, "rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
        if len(data) > PEM_BYTES_MAX:
            raise OSError(f"it has more than {PEM_BYTES_MAX} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}={path} of {settings.listener} cannot be read: {error}") from error


def _make_context(settings: TlsSettings, own: str, trusted: str | None) -> ssl.SSLContext:
    listener = settings.listener
    own = pem_blocks(own)
    if "CERTIFICATE-----" not in own or "PRIVATE KEY-----" not in own:
        raise ConfigError(
            f"{listener} needs a certificate and its private key in PEM: both in the file of ssl.keystore.location,"
            " or in ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A resumed session would bring back a client certificate that nobody looks at again.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    versions = [_VERSIONS[name] for name in settings.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    try:
        if settings.ciphers:
            context.set_ciphers(":".join(settings.ciphers))
        with _as_file(own.encode()) as path:
            context.load_cert_chain(path, password=lambda: _password(settings))
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"the certificate and key of {listener} cannot be used: {_reason(error)}") from error
    context.verify_mode = _VERIFY[settings.client_auth]
    if trusted is not None:
        try:
            context.load_verify_locations(cadata=pem_blocks(trusted))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the truststore of {listener} cannot be used: {_reason(error)}") from error
    return context


def _password(settings: TlsSettings) -> str:
    if settings.key_password is None:
        raise ConfigError(f"the private key of {settings.listener} is encrypted: ssl.key.password must be set")
    return settings.key_password


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """OpenSSL reads keys only from files: this one is in memory where the system can do that, and gone at once elsewhere."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:  # readable by us only
            file.write(data)
            file.flush()
            yield file.name


def _reason(error: Exception) -> str:
    """What OpenSSL says, without where in its sources it says it."""
    text = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    return str(text).replace("_", " ").lower() if isinstance(error, ssl.SSLError) else str(text) or type(error).__name__


class Lobby(asyncio.BufferedProtocol):
    """Where a connection waits until its handshake is done, and what came with the end of the handshake waits for the connection."""

    def __init__(
        self,
        tls: Tls,
        make: Callable[[], Connection],
        done: Callable[[Lobby, str | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`done` is told once: None, or why there will be no connection."""
        self._tls = tls
        self._make = make
        self._done = done
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._buffer = bytearray(EARLY_BYTES)
        self._early = bytearray()
        self._lost = False
        self.address = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called for the plain transport only; the upgraded one goes to the connection."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        name = transport.get_extra_info("peername")
        self.address = name[0] if isinstance(name, tuple) else "local"
        self._task = self._loop.create_task(self._shake_hands(transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)  # asyncio fills slices of it, and a slice of a bytearray is a copy

    def buffer_updated(self, nbytes: int) -> None:
        self._early += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        problem: str | None = "the node stops"
        try:
            transport = await self._loop.start_tls(
                plain,
                self,
                self._tls.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=SHUTDOWN_S_MAX,
            )
            if transport is None or self._lost:
                problem = "the client closed it"
                return
            try:
                principal = self._tls.principal(transport)
            except (HeadraceError, BadCertificate) as error:
                problem = str(error)
                transport.close()
                return
            problem = None
            self._hand_over(transport, principal)
        except OSError as error:  # every SSLError is one
            problem = _reason(error)
        finally:
            if problem is not None:
                plain.abort()
            self._done(self, problem)

    def _hand_over(self, transport: asyncio.Transport, principal: Principal) -> None:
        connection = self._make()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.peer.principal = principal
        early = memoryview(self._early)
        while early:
            room = connection.get_buffer(len(early))
            size = min(len(room), len(early))
            room[:size] = early[:size]
            early = early[size:]
            connection.buffer_updated(size)
