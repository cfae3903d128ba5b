"""Kafka's command-line tools on a real Kafka and on Headrace: their output must be equal.

One script runs against both; what cannot be equal (ports, ids, times, data directories) is replaced by a placeholder
before comparing.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testkit.kafka_peer import KafkaPeer, tool

from headrace.testing.processes import LOOPBACK, NodeProcess, free_port
from tools.prove.registry import say
from tools.prove.security.certificates import make_certificate

PASSWORD = "secret"
DOORS = ("PLAINTEXT", "SSL", "SASL_SSL", "CONTROLLER")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_UUID = re.compile(r"\b[A-Za-z0-9_-]{22}\b")
_TIME = re.compile(r"\b1[0-9]{12}\b")
_ADDRESS = re.compile(rf"(localhost|{re.escape(LOOPBACK)}):[0-9]+")


@dataclass(frozen=True)
class Step:
    """One call of a tool. `door` is the listener; `forget` lists patterns that may differ in its output."""

    tool: str
    arguments: tuple[str, ...]
    input: str = ""
    door: str = "PLAINTEXT"
    forget: tuple[str, ...] = ()
    keep: str = ""  # only matching lines are compared
    unordered: bool = False
    distinct: bool = False  # ignores how often a line is repeated
    tidy: Callable[[str], str] = str  # sorts parts of a line that have no fixed order

    def __str__(self) -> str:
        return f"kafka-{self.tool} {' '.join(self.arguments)}"


@dataclass(frozen=True)
class Act:
    """An action of other clients between two calls, given the server's address. Its result is compared too."""

    name: str
    run: Callable[[str], str]

    def __str__(self) -> str:
        return self.name


Script = Sequence[Step | Act]


def step(
    text: str,
    input: str = "",
    door: str = "PLAINTEXT",
    forget: Sequence[str] = (),
    keep: str = "",
    unordered: bool = False,
    distinct: bool = False,
    tidy: Callable[[str], str] = str,
) -> Step:
    name, *arguments = text.split()
    return Step(name, tuple(arguments), input, door, tuple(forget), keep, unordered, distinct, tidy)


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


class Security:
    """Certificates made by openssl, and the settings of both servers and of the tools for each listener."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store, self._trusted = make_certificate(directory)
        self.ports = dict(zip(DOORS, _free_ports(len(DOORS)), strict=True))

    def settings(self) -> dict[str, str]:
        listeners = {name: f"{name}://{LOOPBACK}:{self.ports[name]}" for name in DOORS}
        return {
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(listeners[name] for name in DOORS[:3]),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self.ports['CONTROLLER']}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._store),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{JAAS} user_bob="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:bob",  # Kafka's broker talks to its controller over PLAINTEXT
            "num.partitions": "1",
        }

    def client(self, door: str) -> list[str]:
        if door == "PLAINTEXT":
            return []
        given = {"security.protocol": door, "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._trusted)}
        if door == "SASL_SSL":
            given |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{JAAS} username="bob" password="{PASSWORD}";'}
        file = self._directory / f"{door}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return ["--command-config", str(file)]


def play(security: Security, script: Script, who: str, data_dir: Path, directory: Path) -> list[str]:
    deletion = directory / "deletion.json"
    deletion.write_text(json.dumps({"version": 1, "partitions": [{"topic": "first", "partition": 4, "offset": 1}]}))
    outputs = []
    for number, one in enumerate(script):
        if number % 10 == 0:
            say(f"{who}: {number} of {len(script)} calls of Kafka's tools")
        if isinstance(one, Act):
            outputs.append(one.run(f"{LOOPBACK}:{security.ports['PLAINTEXT']}"))
            continue
        arguments = [argument.replace("{deletion}", str(deletion)) for argument in one.arguments]
        where = ["--bootstrap-server", f"{LOOPBACK}:{security.ports[one.door]}", *security.client(one.door)]
        # Tools with subcommands differ in whether the server goes before or after them.
        front = one.tool in ("metadata-quorum", "features", "transactions")
        call = [*where, *arguments] if front else [*arguments, *where]
        done = tool(one.tool, *call, input=one.input.encode())
        text = done.stdout.decode(errors="replace") + "\n" + done.stderr.decode(errors="replace")
        text = text.replace('}{"key"', '}\n{"key"')  # formatters print nothing between two records
        outputs.append(normal(text, one, data_dir, directory) + f"\nexit {done.returncode}")
    return outputs


def normal(text: str, one: Step, data_dir: Path, directory: Path) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and not _is_noise(line)]
    if one.keep:
        lines = [line for line in lines if re.search(one.keep, line)]
    lines = [_without_random_ids(one.tidy(line), one, data_dir, directory) for line in lines]
    if one.distinct:
        lines = list(dict.fromkeys(lines))
    return "\n".join(sorted(lines) if one.unordered else lines)


def _without_random_ids(line: str, one: Step, data_dir: Path, directory: Path) -> str:
    line = line.replace(str(data_dir), "DATA").replace(str(directory), "WORK")
    for pattern, name in ((_ADDRESS, "ADDRESS"), (_UUID, "ID"), (_TIME, "TIME")):
        line = pattern.sub(name, line)
    for forgotten in one.forget:
        line = re.sub(forgotten, "N", line)
    return line


def _is_noise(line: str) -> bool:
    """Return whether the line is part of a stack trace or a dated log line."""
    return (
        line.lstrip().startswith(("at ", "... ", "Caused by"))
        or re.match(r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}", line) is not None
    )


def both(
    make: Callable[[], Script], differences: Callable[[str], None], settings: Mapping[str, str] | None = None
) -> int:
    """Play the script, made anew for each side, report every difference and return the number of calls."""
    with tempfile.TemporaryDirectory(prefix="headrace-tools-") as name:
        directory = Path(name)
        played: dict[str, list[str]] = {}
        script: Script = ()
        for who in ("Kafka", "Headrace"):
            security = Security(directory)
            script = make()
            given = security.settings() | dict(settings or {})
            server = (KafkaPeer if who == "Kafka" else NodeProcess)(given, directory=directory / who)
            server.port = security.ports["PLAINTEXT"]
            with server:
                played[who] = play(security, script, who, server.data_dir, directory)
        for one, theirs, ours in zip(script, played["Kafka"], played["Headrace"], strict=True):
            if theirs != ours:
                differences(f"{one}\n  Kafka:    {theirs!r}\n  Headrace: {ours!r}")
    return len(script)
