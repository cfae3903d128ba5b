"""Clients that put line breaks and escape sequences into every name, and the lines that a node logs about them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack
from typing import Any

from headrace.client.wire.frames import encode_request
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.declare import ResolvedField, Struct, fields_of
from headrace.protocol.errors import EncodeError
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.testing.processes import LOOPBACK, NodeProcess, free_port

FORGED = "2026-01-01 00:00:00,000 INFO forged by a client (headrace)"
POISON = f"x\r\n{FORGED}\n\x1b[2J\x85{FORGED}\u2028{FORGED}\x00\u202e"
ANSWER_S_MAX = 2.0
_JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) .*\([\w.]+\)")
_TRACEBACK_LINE = re.compile(r"    .*")
_UNPRINTABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]")
_NUMBERS = {"float64": 0.0, "bool": True}
_ACKS = "acks"  # always 1, because a Produce request with acks=0 gets no response


class VerboseNode(NodeProcess):
    """A node that logs everything, with an authorizer whose decisions are all in the audit log."""

    def __init__(self, directory: Path, *, allow_everyone: bool) -> None:
        self.ports = {name: free_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT", "CONTROLLER")}
        super().__init__(
            {
                "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in self.ports.items()),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                _JAAS: 'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="secret";',
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS" if allow_everyone else "User:admin",
                "connection.failed.authentication.delay.ms": "0",
            },
            directory=directory,
        )

    def command(self) -> list[str]:
        return [*super().command(), "--log-level", "DEBUG"]


def poison_node(directory: Path, *, allow_everyone: bool) -> tuple[int, list[str]]:
    """Send poisoned requests of every API to all listeners; return their number and the lines that the node logged."""
    node = VerboseNode(directory, allow_everyone=allow_everyone)
    with node:
        sent = 0
        for listener in ("PLAINTEXT", "CONTROLLER"):
            for message, version in poisoned_requests():
                if _send(node.ports[listener], [(message, version)]):
                    sent += 1
        for login in _logins():
            if _send(node.ports["SASL_PLAINTEXT"], login):
                sent += 1
        node.terminate()
        return sent, node.log_file.read_bytes().decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")


def poisoned_requests() -> Iterator[tuple[Any, int]]:
    """Yield every request in its oldest and newest version, with the poison in every text field."""
    for key, api in APIS.items():
        versions = api.request.facts.versions
        if key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            for version in sorted({versions.low, api.stable_version_max}):
                yield _poisoned(api.request, version), version


def _poisoned(message: type[Struct], version: int) -> Any:
    return message(**{field.name: _value(field, version) for field in fields_of(message) if version in field.versions})


def _value(field: ResolvedField, version: int) -> Any:
    if field.name == _ACKS:
        return 1
    one = _poisoned(field.struct, version) if field.struct else _leaf(field)
    return [one] if field.is_array else one


def _leaf(field: ResolvedField) -> Any:
    assert field.wire
    name = field.wire.name
    if name == "string":
        return POISON
    if name in ("bytes", "records"):
        return POISON.encode()
    if name == "uuid":
        return bytes(range(16))
    return _NUMBERS.get(name, 0)


def _logins() -> Iterator[list[tuple[Any, int]]]:
    for mechanism, token in (
        (POISON, b""),
        ("PLAIN", f"\0{POISON}".encode()),
        ("PLAIN", "\0".join(("", POISON.replace("\0", ""), "wrong")).encode()),
        ("SCRAM-SHA-256", f"n,,n={POISON},r=abc".encode()),
        ("SCRAM-SHA-256", b"n,,n=" + POISON.replace("\0", "").encode() + b",r=abc"),
        ("SCRAM-SHA-256", POISON.encode()),
    ):
        yield [(SaslHandshakeRequest(mechanism=mechanism), 1), (SaslAuthenticateRequest(auth_bytes=token), 2)]


def _send(port: int, requests: list[tuple[Any, int]]) -> bool:
    """Send the requests with a poisoned client id, each after the response to the one before.

    Return False if a request cannot be encoded or the connection breaks.
    """
    with suppress(OSError, EncodeError), socket.create_connection((LOOPBACK, port), ANSWER_S_MAX) as client:
        for message, version in requests:
            client.sendall(b"".join(encode_request(message, version, 1, POISON)))
            head = client.recv(4, socket.MSG_WAITALL)
            if len(head) == 4:
                client.recv(unpack(">i", head)[0], socket.MSG_WAITALL)
        client.sendall(pack(">i", 20) + b"\xff" * 20)
        client.recv(1)
        return True
    return False


def judge_lines(lines: list[str]) -> int:
    """Return how many lines contain the poison. Raise AssertionError for a forged or an unprintable line."""
    for line in lines:
        assert not line.startswith(FORGED[:23]), f"a client forged this line: {line!r}"
        assert _LINE.fullmatch(line) or _TRACEBACK_LINE.fullmatch(line), f"not a line of the log: {line!r}"
        assert not _UNPRINTABLE.search(line), f"unprintable characters in a line of the log: {line!r}"
    poisoned = sum(FORGED in line for line in lines)
    assert poisoned, "the log contains none of the poisoned names, so the check proves nothing"
    return poisoned
