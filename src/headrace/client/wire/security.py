"""A client's TLS context and SASL login, from options with Kafka's names."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.client.wire.options import MECHANISMS
from headrace.options.table import Value
from headrace.security.cipher_suites import TLS_1_3, openssl_name
from headrace.security.credentials import SCRAM_MECHANISMS
from headrace.security.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_login
from headrace.security.pem import pem_blocks
from headrace.security.sasl.client import ClientExchange, PlainClient, ScramClient

PEM_BYTES_MAX = 1 << 20
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Login(NamedTuple):
    mechanism: str
    start: Callable[[], ClientExchange]  # a new exchange for each connection


class ClientSecurity(Struct, frozen=True):
    """Security settings of a client; by default plaintext without a login."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


def make_security(values: Mapping[str, Value], random: Random) -> ClientSecurity:
    """Build the security settings from `values`, by the names of CLIENT_OPTIONS.

    Raise ConfigError naming an option that cannot be used.
    """
    protocol = str(values["security.protocol"])
    return ClientSecurity(
        tls=_make_context(values) if protocol.endswith("SSL") else None,
        login=_make_login(values, random) if protocol.startswith("SASL") else None,
    )


def _make_login(values: Mapping[str, Value], random: Random) -> Login:
    mechanism = str(values["sasl.mechanism"])
    if mechanism not in MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism} is not supported; write {', '.join(MECHANISMS)}")
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    text = values["sasl.jaas.config"]
    if not isinstance(text, str) or not text:
        raise ConfigError(f'sasl.jaas.config must say who logs in: {module} required username="…" password="…";')
    login = parse_login("sasl.jaas.config", text)
    if login.module != module:
        raise ConfigError(f"sasl.jaas.config: the login module of {mechanism} is {module}, not {login.module}")
    user, password = login.options.get("username"), login.options.get("password")
    if not user or password is None:
        raise ConfigError("sasl.jaas.config: username and password must stand there")

    def start() -> ClientExchange:
        if mechanism == "PLAIN":
            return PlainClient(user, password)
        return ScramClient(SCRAM_MECHANISMS[mechanism], user, password, random)

    return Login(mechanism, start)


def _make_context(values: Mapping[str, Value]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = values["ssl.endpoint.identification.algorithm"]
    if algorithm not in ("https", "", None):
        raise ConfigError(f"ssl.endpoint.identification.algorithm={algorithm!r}: write https, or nothing for no check")
    context.check_hostname = algorithm == "https"
    _choose_ciphers(context, values)
    trusted = _pem_of(values, "ssl.truststore.location", "ssl.truststore.certificates")
    if trusted is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=trusted)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the truststore cannot be used: {_reason(error)}") from error
    own = _pem_of(values, "ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key")
    if own is not None:
        _load_key(context, own, values["ssl.key.password"])
    return context


def _choose_ciphers(context: ssl.SSLContext, values: Mapping[str, Value]) -> None:
    protocols, suites = values["ssl.enabled.protocols"], values["ssl.cipher.suites"]
    assert isinstance(protocols, list) and isinstance(suites, list)
    if not protocols:
        raise ConfigError("ssl.enabled.protocols: at least one of TLSv1.2 and TLSv1.3 is needed")
    versions = [_VERSIONS[name] for name in protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    try:
        older = [openssl_name(suite) for suite in suites if suite not in TLS_1_3]
        if older:
            context.set_ciphers(":".join(older))
    except (ValueError, ssl.SSLError) as error:
        raise ConfigError(f"ssl.cipher.suites: {_reason(error)}") from error


def _pem_of(values: Mapping[str, Value], location: str, *inline: str) -> str | None:
    path = values[location]
    if isinstance(path, str) and path:
        text = _read(location, path)
        found = pem_blocks(text)
        if not found:
            raise ConfigError(f"{location}={path} has no PEM block in it")
        return found
    texts = [given for name in inline if isinstance(given := values[name], str) and given]
    return pem_blocks("\n".join(texts)) if texts else None


def _read(option: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{option}={path} cannot be read: {error.strerror or error}") from error
    if len(data) > PEM_BYTES_MAX:
        raise ConfigError(f"{option}={path} has more than {PEM_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace")


def _load_key(context: ssl.SSLContext, own: str, password: Value) -> None:
    def unlock() -> str:
        if not isinstance(password, str):
            raise ConfigError("the private key is encrypted: ssl.key.password must be set")
        return password

    with tempfile.NamedTemporaryFile() as file:  # OpenSSL only reads keys from files; only this user can read this one
        file.write(own.encode())
        file.flush()
        try:
            context.load_cert_chain(file.name, password=unlock)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"the client's key and certificate cannot be used: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    return str(text).replace("_", " ").lower() if isinstance(error, ssl.SSLError) else str(text)
