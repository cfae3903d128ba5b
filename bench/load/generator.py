"""Loads, the generator that applies them in a separate process, and their outcomes.

The generator is a small C program (bench/native/load.c), so that on few cores the server is the bottleneck. Without a C
compiler a Python fallback is used, which may itself be the bottleneck.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.errors import BenchFailed
from bench.native.programs import compiled_program
from bench.paths import ROOT

SLACK_S = 60.0  # time beyond that of the load itself before it counts as hung
RESPONSE_BYTES_MIN = 9
RESPONSE_BYTES_MAX = 1 << 30
_CONNECTION = struct.Struct("<I")


@dataclass(frozen=True)
class Load:
    frames: list[list[bytes]]  # frames for each connection, sent repeatedly in turn
    in_flight: int
    payload_bytes: int  # bytes of record batches in a request or its response
    error_at: tuple[int, ...]  # positions in a response of int16 error codes that must be 0
    response_min: int = RESPONSE_BYTES_MIN
    response_max: int = RESPONSE_BYTES_MAX
    batch_at: int = -1  # position in a frame of an idempotent producer's batch
    records: int = 0  # increment of its sequence number per batch
    tls: Path | None = None  # the certificate that the server must present; None for plaintext


class Target(NamedTuple):
    """The servers of a load: connection n goes to port n modulo the number of ports, and the CPU time is that of all processes."""

    ports: tuple[int, ...]
    pids: tuple[int, ...]


class Server(Protocol):
    """A process with one port."""

    @property
    def port(self) -> int: ...
    @property
    def pid(self) -> int: ...


def target_of(server: Server) -> Target:
    return Target((server.port,), (server.pid,))


@dataclass(frozen=True)
class Span:
    """Duration and volume of a load: beyond `bytes_max` (0 means unlimited) a round ends early."""

    seconds: float
    warm: float = 0.0
    bytes_max: int = 0


@dataclass(frozen=True)
class Outcome:
    seconds: float
    responses: int  # responses within the measured time
    all_responses: int  # including the warm-up and the last ones, which arrive after the measured time
    errors: int
    first_error: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    server_cpu_s: float
    client_cpu_s: float
    tls: str = ""  # TLS version and cipher suite, if any
    payload_bytes: int = 0

    @property
    def mb_per_s(self) -> float:
        return self.responses * self.payload_bytes / self.seconds / 1e6

    @property
    def cpu_s_per_gb(self) -> float:
        return self.server_cpu_s / (self.responses * self.payload_bytes / 1e9)

    @property
    def cpu_us_per_request(self) -> float:
        return self.server_cpu_s / self.responses * 1e6

    @property
    def requests_per_s(self) -> float:
        return self.responses / self.seconds

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def arguments(load: Load, target: Target, span: Span, frames: Path) -> list[str]:
    requests_max = max(1, span.bytes_max // load.payload_bytes) if span.bytes_max else 0
    values = {
        "in_flight": load.in_flight,
        "requests_max": requests_max,
        "response_min": load.response_min,
        "response_max": load.response_max,
        "batch_at": load.batch_at,
        "records": load.records,
        "warm": span.warm,
        "seconds": span.seconds,
    }
    common = [f"{name}={value}" for name, value in values.items()]
    servers = [*(f"port={port}" for port in target.ports), *(f"pid={pid}" for pid in target.pids)]
    tls = [] if load.tls is None else [f"tls={load.tls}"]
    return [*common, *servers, *tls, *(f"error_at={at}" for at in load.error_at), f"frames={frames}"]


class RunningLoad:
    """A load running in a separate process; `outcome` waits for it to end."""

    def __init__(self, load: Load, target: Target, span: Span) -> None:
        self._load = load
        self._seconds = span.seconds + span.warm + SLACK_S
        self._frames = tempfile.NamedTemporaryFile(prefix="bench-frames-")  # noqa: SIM115 (closed by outcome)
        for number, frames in enumerate(load.frames):
            for frame in frames:
                self._frames.write(_CONNECTION.pack(number))
                self._frames.write(frame)
        self._frames.flush()
        command = _generator(tls=load.tls is not None) + arguments(load, target, span, Path(self._frames.name))
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop(self) -> None:
        """End the load early."""
        self._process.terminate()

    def outcome(self) -> Outcome:
        """Wait for the load and return its outcome. Raise BenchFailed if it fails or a response has an error."""
        with self._frames:
            try:
                output, errors = self._process.communicate(timeout=self._seconds)
            finally:
                self._process.kill()
                self._process.wait()
        if self._process.returncode != 0:
            raise BenchFailed(f"the load generator failed: {errors.strip()}")
        outcome = Outcome(**json.loads(output), payload_bytes=self._load.payload_bytes)
        if outcome.errors:
            raise BenchFailed(f"{outcome.errors} responses had an error, the first one {outcome.first_error}")
        if outcome.responses == 0:
            raise BenchFailed("there was no response within the measured time")
        return outcome


def run_load(load: Load, target: Target, span: Span) -> Outcome:
    return RunningLoad(load, target, span).outcome()


def generator_name() -> str:
    if compiled_program("load") is None:
        return "Python (no C compiler)"
    return "C" if compiled_program("load-tls") is not None else "C; for TLS, Python (no OpenSSL headers)"


def _generator(*, tls: bool) -> list[str]:
    program = compiled_program("load-tls" if tls else "load")
    return [str(program)] if program is not None else [sys.executable, "-m", "bench.load.fallback"]
