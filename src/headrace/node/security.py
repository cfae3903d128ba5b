"""Builds security from settings: the authorizer, and for each listener TLS, SASL mechanisms and users.

Kafka features that Headrace lacks are refused by name, with a replacement. If ignoring one is harmless, a warning is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from msgspec.structs import replace

from headrace.base.errors import ConfigError, HeadraceError
from headrace.node.configuration.listener_addresses import ListenerAddress
from headrace.node.configuration.listener_options import parse_listener_options
from headrace.node.configuration.settings import ALL_OPTIONS, Settings
from headrace.security.authorizer import StandardAuthorizer
from headrace.security.cipher_suites import TLS_1_3, openssl_name
from headrace.security.credentials import SCRAM_MECHANISMS, ScramCredential, ScramMechanism
from headrace.security.jaas import PLAIN_MODULE, SCRAM_MODULE, Login, parse_login
from headrace.security.principal_mapping import principal_mapping
from headrace.security.principals import parse_super_users
from headrace.security.sasl.exchange import Exchange
from headrace.security.sasl.plain import MECHANISM as PLAIN
from headrace.security.sasl.plain import PlainExchange
from headrace.security.sasl.scram import ScramExchange
from headrace.server.acl_authority import AclAuthority
from headrace.server.authentication import SaslSettings
from headrace.server.authority import ALLOW_ALL, Authority
from headrace.server.listener import Security
from headrace.server.tls import Tls, TlsSettings

log = logging.getLogger(__name__)

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PRINCIPAL_BUILDER = "DefaultKafkaPrincipalBuilder"
PEM = "PEM"
SECRET_BYTES = 32
_NO_PLUGINS = "plugins of a JVM cannot be loaded"

CredentialLookup = Callable[[ScramMechanism, str], ScramCredential | None]


def check_security(settings: Settings) -> None:
    """Check what can be checked before anything is opened. Raise ConfigError, which names the setting."""
    if not settings.text("authorizer.class.name"):
        for option in ("super.users", "allow.everyone.if.no.acl.found"):
            if option in settings.explicit:
                log.warning("%s has no effect without authorizer.class.name=%s", option, STANDARD_AUTHORIZER)
        _warn_of_open_controllers(settings)
    builder = settings.text("principal.builder.class")
    if builder and builder.rpartition(".")[2] != PRINCIPAL_BUILDER:
        raise ConfigError(
            f"principal.builder.class={builder}: {_NO_PLUGINS}; ssl.principal.mapping.rules shortens names"
        )


def _warn_of_open_controllers(settings: Settings) -> None:
    if all(settings.protocols[listener.name] == "PLAINTEXT" for listener in settings.broker_listeners):
        return
    for listener in settings.controller_listeners:
        if settings.protocols[listener.name] == "PLAINTEXT":
            log.warning(
                "listener.security.protocol.map: %s is PLAINTEXT, and there is no authorizer.class.name: every client that can connect"
                " to it may change users, topics and configs without a login; secure it, or bind it to a private address",
                listener.name,
            )


def make_authorizer(settings: Settings) -> StandardAuthorizer | None:
    name = settings.text("authorizer.class.name")
    if not name:
        return None
    if name != STANDARD_AUTHORIZER:
        raise ConfigError(f"authorizer.class.name={name} is not supported; write {STANDARD_AUTHORIZER}")
    return StandardAuthorizer(
        parse_super_users(settings.text("super.users") or ""),
        allow_if_no_acl=settings.flag("allow.everyone.if.no.acl.found"),
    )


def authority_of(authorizer: StandardAuthorizer | None) -> Authority:
    """Return the authority that decides about clients; as in Kafka, everything is allowed without an authorizer."""
    return ALLOW_ALL if authorizer is None else AclAuthority(authorizer)


class SecurityOfListeners:
    """Builds the TLS, SASL and authority of each listener of one role."""

    def __init__(
        self,
        settings: Settings,
        now_ms: Callable[[], int],
        random: Random,
        lookup: CredentialLookup,
        authority: Authority,
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._random = random
        self._lookup = lookup
        self._authority = authority
        self._tls: dict[str, Tls] = {}

    def of(self, address: ListenerAddress) -> Security:
        protocol = self._settings.protocols[address.name]
        tls = None
        if protocol.endswith("SSL"):
            tls = self._tls[address.name] = Tls(tls_settings(self._settings, address.name), self._now_ms)
        sasl = self._sasl(address.name) if protocol.startswith("SASL") else None
        return Security(tls, sasl, self._authority)

    def apply(self, dynamic: Mapping[str, str]) -> None:
        """Apply key stores and trust stores that were set dynamically (listener.name.<listener>.ssl.…)."""
        stores = {
            name: text for name, text in dynamic.items() if ".ssl.keystore." in name or ".ssl.truststore." in name
        }
        stores |= {name: text for name, text in dynamic.items() if name.endswith(".ssl.key.password")}
        values = parse_listener_options(stores, ALL_OPTIONS, list(self._tls), log.warning)
        settings = replace(self._settings, listener_values={**self._settings.listener_values, **values})
        for listener, tls in self._tls.items():
            try:
                tls.take_over(tls_settings(settings, listener))
            except HeadraceError as error:
                log.warning("%s keeps its certificate: %s", listener, error)

    def _sasl(self, listener: str) -> SaslSettings:
        settings = self._settings
        mechanisms = _texts(settings, listener, "sasl.enabled.mechanisms")
        if not mechanisms:
            raise ConfigError(f"sasl.enabled.mechanisms: {listener} uses SASL and needs at least one")
        passwords: dict[str, str] = {}
        for mechanism in mechanisms:
            if mechanism == PLAIN:
                passwords = _plain_users(settings, listener)
            elif mechanism in SCRAM_MECHANISMS:
                _check_scram_login(settings, listener, mechanism)
            else:
                raise ConfigError(
                    f"sasl.enabled.mechanisms of {listener}: {mechanism} is not supported;"
                    f" write {PLAIN}, {' or '.join(SCRAM_MECHANISMS)}"
                )
        secret = self._random.randbytes(SECRET_BYTES)

        def exchange(mechanism: str) -> Exchange:
            if mechanism == PLAIN:
                return PlainExchange(passwords)
            return ScramExchange(SCRAM_MECHANISMS[mechanism], self._lookup, secret, self._random)

        return SaslSettings(
            mechanisms=tuple(mechanisms),
            exchange=exchange,
            session_s={
                mechanism: _number(settings, listener, "connections.max.reauth.ms", mechanism) / 1000
                for mechanism in mechanisms
            },
            receive_bytes_max=_number(settings, listener, "sasl.server.max.receive.size"),
            failure_delay_s=settings.number("connection.failed.authentication.delay.ms") / 1000,
        )


def tls_settings(settings: Settings, listener: str) -> TlsSettings:
    text = partial(_text, settings, listener)
    check_store(settings, listener, "keystore")
    if text("ssl.truststore.location") or text("ssl.truststore.certificates"):
        check_store(settings, listener, "truststore")
    client_auth = _client_auth(settings, listener)
    trusts = text("ssl.truststore.location") or text("ssl.truststore.certificates")
    if client_auth != "none" and not trusts:
        raise ConfigError(
            f"ssl.client.auth={client_auth} of {listener}: ssl.truststore.location or ssl.truststore.certificates must say"
            " whose certificates count"
        )
    protocols, ciphers = _ciphers(settings, listener)
    return TlsSettings(
        listener=listener,
        keystore=text("ssl.keystore.location"),
        certificate_chain=text("ssl.keystore.certificate.chain"),
        key=text("ssl.keystore.key"),
        key_password=text("ssl.key.password"),
        truststore=text("ssl.truststore.location"),
        trusted=text("ssl.truststore.certificates"),
        client_auth=client_auth,
        protocols=protocols,
        ciphers=ciphers,
        map_name=principal_mapping(text("ssl.principal.mapping.rules") or "DEFAULT"),
    )


def check_store(settings: Settings, listener: str, store: str) -> None:
    """Raise ConfigError if a listener's keystore or truststore is not a PEM file."""
    kind = _text(settings, listener, f"ssl.{store}.type")
    if kind != PEM:
        what = "the certificate chain and the private key" if store == "keystore" else "the certificates"
        raise ConfigError(
            f"ssl.{store}.type={kind} of {listener}: JKS and PKCS12 stores are not read. Write ssl.{store}.type=PEM and put"
            f" {what} into one PEM file (openssl pkcs12 -in store.p12 -nodes -out store.pem makes it)"
        )
    if _text(settings, listener, f"ssl.{store}.password"):
        raise ConfigError(
            f"ssl.{store}.password of {listener}: a PEM file has no password; ssl.key.password is for the private key"
        )


def _client_auth(settings: Settings, listener: str) -> str:
    """Return ssl.client.auth. As in Kafka, on a SASL_SSL listener it counts only if set for that listener."""
    value = _text(settings, listener, "ssl.client.auth") or "none"
    if settings.protocols[listener] == "SASL_SSL":
        own = f"listener.name.{listener.lower()}.ssl.client.auth"
        if own not in settings.listener_values:
            if value != "none":
                log.warning("ssl.client.auth has no effect on %s, which uses SASL; %s would have one", listener, own)
            return "none"
    return value


def _ciphers(settings: Settings, listener: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the TLS versions and cipher suites. A version without a listed suite is not offered."""
    protocols = _texts(settings, listener, "ssl.enabled.protocols")
    suites = _texts(settings, listener, "ssl.cipher.suites")
    if suites:
        modern = [suite for suite in suites if suite in TLS_1_3]
        if modern and len(modern) < len(TLS_1_3) and "TLSv1.3" in protocols:
            log.warning("ssl.cipher.suites of %s: of TLS 1.3 all suites are offered (%s)", listener, ", ".join(TLS_1_3))
        spoken = {"TLSv1.3": bool(modern), "TLSv1.2": len(modern) < len(suites)}
        protocols = [protocol for protocol in protocols if spoken[protocol]]
    if not protocols:
        raise ConfigError(f"ssl.enabled.protocols and ssl.cipher.suites of {listener} exclude every version of TLS")
    try:
        return tuple(protocols), tuple(openssl_name(suite) for suite in suites if suite not in TLS_1_3)
    except ValueError as error:
        raise ConfigError(f"ssl.cipher.suites of {listener}: {error}") from error


def _plain_users(settings: Settings, listener: str) -> dict[str, str]:
    login = _login(settings, listener, PLAIN)
    if login is None:
        raise ConfigError(
            f"{listener} uses SASL PLAIN: listener.name.{listener.lower()}.plain.sasl.jaas.config must name its users:"
            f' {PLAIN_MODULE} required user_alice="password";'
        )
    if login.module != PLAIN_MODULE:
        raise ConfigError(f"the login module of PLAIN on {listener} must be {PLAIN_MODULE}, not {login.module}")
    return login.users


def _check_scram_login(settings: Settings, listener: str, mechanism: str) -> None:
    """Check the login line, which Kafka requires. It is optional here, because SCRAM users are in the metadata log."""
    login = _login(settings, listener, mechanism)
    if login is None:
        return
    if login.module != SCRAM_MODULE:
        raise ConfigError(f"the login module of {mechanism} on {listener} must be {SCRAM_MODULE}, not {login.module}")


def _login(settings: Settings, listener: str, mechanism: str) -> Login | None:
    option = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    text = settings.listener_values.get(option)
    return None if text is None else parse_login(option, str(text))


def _text(settings: Settings, listener: str, option: str) -> str | None:
    value = settings.for_listener(listener, option)
    assert value is None or isinstance(value, str), f"{option} is no text"
    return value or None


def _texts(settings: Settings, listener: str, option: str) -> list[str]:
    value = settings.for_listener(listener, option)
    assert isinstance(value, list), f"{option} is no list"
    return list(dict.fromkeys(value))


def _number(settings: Settings, listener: str, option: str, mechanism: str | None = None) -> int:
    value = settings.for_listener(listener, option, mechanism)
    assert isinstance(value, int), f"{option} is no number"
    return value
