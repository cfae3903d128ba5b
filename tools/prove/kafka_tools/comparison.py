"""The comparison of the tools' output on a real Kafka and on Headrace.

One script runs against both servers; what cannot be equal (ports, ids, times, data directories) is replaced by a
placeholder before comparing.
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
from tools.prove.registry import print_progress
from tools.prove.security.certificates import make_certificate

PASSWORD = "secret"
LISTENERS = ("PLAINTEXT", "SSL", "SASL_SSL", "CONTROLLER")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_UUID = re.compile(r"\b[A-Za-z0-9_-]{22}\b")
_TIME = re.compile(r"\b1[0-9]{12}\b")
_ADDRESS = re.compile(rf"(localhost|{re.escape(LOOPBACK)}):[0-9]+")


@dataclass(frozen=True)
class Step:
    """One call of a tool; `forget` lists patterns that may differ in its output."""

    tool: str
    arguments: tuple[str, ...]
    input: str = ""
    listener: str = "PLAINTEXT"
    forget: tuple[str, ...] = ()
    keep: str = ""  # only matching lines are compared
    unordered: bool = False
    distinct: bool = False  # ignores how often a line is repeated
    tidy: Callable[[str], str] = str  # sorts parts of a line that have no fixed order

    def __str__(self) -> str:
        return f"kafka-{self.tool} {' '.join(self.arguments)}"


@dataclass(frozen=True)
class Action:
    """An action of other clients between two calls, given the server's address; its result is compared too."""

    name: str
    run: Callable[[str], str]

    def __str__(self) -> str:
        return self.name


Script = Sequence[Step | Action]


def call(
    text: str,
    input: str = "",
    listener: str = "PLAINTEXT",
    forget: Sequence[str] = (),
    keep: str = "",
    unordered: bool = False,
    distinct: bool = False,
    tidy: Callable[[str], str] = str,
) -> Step:
    """Return a step from the words of a command line without `kafka-`."""
    name, *arguments = text.split()
    return Step(name, tuple(arguments), input, listener, tuple(forget), keep, unordered, distinct, tidy)


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
        self.ports = dict(zip(LISTENERS, _free_ports(len(LISTENERS)), strict=True))

    def settings(self) -> dict[str, str]:
        listeners = {name: f"{name}://{LOOPBACK}:{self.ports[name]}" for name in LISTENERS}
        return {
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(listeners[name] for name in LISTENERS[:3]),
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

    def client(self, listener: str) -> list[str]:
        if listener == "PLAINTEXT":
            return []
        given = {
            "security.protocol": listener,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._trusted),
        }
        if listener == "SASL_SSL":
            given |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{JAAS} username="bob" password="{PASSWORD}";'}
        file = self._directory / f"{listener}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return ["--command-config", str(file)]


def run_script(security: Security, script: Script, server: str, data_dir: Path, directory: Path) -> list[str]:
    """Run the script on one server and return the normalized output of each step."""
    deletion = directory / "deletion.json"
    deletion.write_text(json.dumps({"version": 1, "partitions": [{"topic": "first", "partition": 4, "offset": 1}]}))
    outputs = []
    for number, step in enumerate(script):
        if number % 10 == 0:
            print_progress(f"{server}: {number} of {len(script)} calls of Kafka's tools")
        if isinstance(step, Action):
            outputs.append(step.run(f"{LOOPBACK}:{security.ports['PLAINTEXT']}"))
            continue
        arguments = [argument.replace("{deletion}", str(deletion)) for argument in step.arguments]
        address = ["--bootstrap-server", f"{LOOPBACK}:{security.ports[step.listener]}", *security.client(step.listener)]
        # Tools with subcommands differ in whether the server is named before or after them.
        server_first = step.tool in ("metadata-quorum", "features", "transactions")
        command = [*address, *arguments] if server_first else [*arguments, *address]
        done = tool(step.tool, *command, input=step.input.encode())
        text = done.stdout.decode(errors="replace") + "\n" + done.stderr.decode(errors="replace")
        text = text.replace('}{"key"', '}\n{"key"')  # formatters print nothing between two records
        outputs.append(normalize(text, step, data_dir, directory) + f"\nexit {done.returncode}")
    return outputs


def normalize(text: str, step: Step, data_dir: Path, directory: Path) -> str:
    """Return the lines to be compared, with placeholders for what cannot be equal."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and not _is_noise(line)]
    if step.keep:
        lines = [line for line in lines if re.search(step.keep, line)]
    lines = [_replace_variables(step.tidy(line), step, data_dir, directory) for line in lines]
    if step.distinct:
        lines = list(dict.fromkeys(lines))
    return "\n".join(sorted(lines) if step.unordered else lines)


def _replace_variables(line: str, step: Step, data_dir: Path, directory: Path) -> str:
    line = line.replace(str(data_dir), "DATA").replace(str(directory), "WORK")
    for variable, name in ((_ADDRESS, "ADDRESS"), (_UUID, "ID"), (_TIME, "TIME")):
        line = variable.sub(name, line)
    for pattern in step.forget:
        line = re.sub(pattern, "N", line)
    return line


def _is_noise(line: str) -> bool:
    """Return whether the line is part of a stack trace or a dated log line."""
    return (
        line.lstrip().startswith(("at ", "... ", "Caused by"))
        or re.match(r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}", line) is not None
    )


def compare_servers(
    make_script: Callable[[], Script], settings: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run the script, made anew for each server, and return the number of calls and the differences."""
    with tempfile.TemporaryDirectory(prefix="headrace-tools-") as name:
        directory = Path(name)
        outputs: dict[str, list[str]] = {}
        script: Script = ()
        for server in ("Kafka", "Headrace"):
            security = Security(directory)
            script = make_script()
            given = security.settings() | dict(settings or {})
            process = (KafkaPeer if server == "Kafka" else NodeProcess)(given, directory=directory / server)
            process.port = security.ports["PLAINTEXT"]
            with process:
                outputs[server] = run_script(security, script, server, process.data_dir, directory)
    differences = [
        f"{step}\n  Kafka:    {kafka!r}\n  Headrace: {headrace!r}"
        for step, kafka, headrace in zip(script, outputs["Kafka"], outputs["Headrace"], strict=True)
        if kafka != headrace
    ]
    return len(script), differences
