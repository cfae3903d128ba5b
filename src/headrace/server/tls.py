"""TLS contexts of a listener, made from PEM texts and made again when the files change."""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.system_errors import system_error_text
from headrace.security.certificates import certificates_in, read_certificate
from headrace.security.pem import pem_blocks
from headrace.security.principals import ANONYMOUS, USER, Principal

log = logging.getLogger(__name__)

PEM_BYTES_MAX = 1 << 20
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSettings(Struct, frozen=True):
    """TLS settings of one listener. Key with chain and trusted certificates are each given as a file or as texts."""

    listener: str
    keystore: str | None = None
    certificate_chain: str | None = None
    key: str | None = None
    key_password: str | None = None
    truststore: str | None = None
    trusted: str | None = None
    client_auth: str = "none"
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()  # OpenSSL's names, for TLS 1.2; empty: OpenSSL's defaults
    map_name: Callable[[str], str | None] = str


class Tls:
    def __init__(self, settings: TlsSettings, now_ms: Callable[[], int]) -> None:
        """Make the first context; raise ConfigError if the settings cannot be used."""
        self.settings = settings
        self._now_ms = now_ms
        self._texts = _gather(settings)
        self.context = _make_context(settings, *self._texts)
        self._check_validity(self._texts[0], reload=False)

    def reload_changed_files(self) -> None:
        """Reload changed files. If they cannot be used, log it once and keep the old context."""
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
        """Switch to other files or texts at runtime; raise ConfigError, and change nothing, if they cannot be used."""
        settings = replace(settings, map_name=self.settings.map_name)
        if settings == self.settings:
            return
        texts = _gather(settings)
        context = _make_context(settings, *texts)
        self._check_validity(texts[0], reload=True)
        self.settings, self._texts, self.context = settings, texts, context
        log.info("%s has a new certificate or truststore", settings.listener)

    def principal(self, client: ssl.SSLSocket) -> Principal:
        """Return the principal of the client's certificate, ANONYMOUS without one.

        Raise HeadraceError if it cannot be parsed or no mapping rule matches its subject.
        """
        certificate = client.getpeercert(binary_form=True)
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
    """Return two PEM texts: key with chain, and trusted certificates."""
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
        # Not through the Files port, which opens for writing: a key file is often read-only.
        with open(path, "rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
        if len(data) > PEM_BYTES_MAX:
            raise OSError(f"it has more than {PEM_BYTES_MAX} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{option}={path} of {settings.listener} cannot be read: {system_error_text(error)}"
        ) from error


def _make_context(settings: TlsSettings, own: str, trusted: str | None) -> ssl.SSLContext:
    listener = settings.listener
    own = pem_blocks(own)
    if "CERTIFICATE-----" not in own or "PRIVATE KEY-----" not in own:
        raise ConfigError(
            f"{listener} needs a certificate and its private key in PEM: both in the file of ssl.keystore.location,"
            " or in ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A resumed session would bring back a client certificate without checking it again.
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
        raise ConfigError(f"the certificate and key of {listener} cannot be used: {reason_of(error)}") from error
    context.verify_mode = _VERIFY[settings.client_auth]
    if trusted is not None:
        try:
            context.load_verify_locations(cadata=pem_blocks(trusted))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the truststore of {listener} cannot be used: {reason_of(error)}") from error
    return context


def _password(settings: TlsSettings) -> str:
    if settings.key_password is None:
        raise ConfigError(f"the private key of {settings.listener} is encrypted: ssl.key.password must be set")
    return settings.key_password


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file with this data, because OpenSSL reads keys only from files.

    The file is in memory if the system supports that, otherwise a temporary one that is deleted afterwards.
    """
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


def reason_of(error: Exception) -> str:
    """Return OpenSSL's message without the location in its source."""
    text = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    return str(text).replace("_", " ").lower() if isinstance(error, ssl.SSLError) else str(text) or type(error).__name__
