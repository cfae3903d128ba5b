"""`headrace serve` as a process: its output and its log."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ENDS_S_MAX = 30


class ServeProcess:
    """A node in its own process, on free ports."""

    def __init__(self, folder: Path, *options: Any, environment: Any = None) -> None:
        settings = (
            "listeners=PLAINTEXT://127.0.0.1:0",
            f"log.dirs={folder / 'data'}",
            "headrace.http.listener=127.0.0.1:0",
        )
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", *options, *(part for one in settings for part in ("-c", one))],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=folder,
            env=environment,
        )

    def line(self) -> str:
        """Return the next line of standard output; empty after the last."""
        return self._process.stdout.readline()

    def stop(self) -> tuple[str, str]:
        """Stop the node and return the rest of standard output, and standard error."""
        self._process.send_signal(signal.SIGTERM)
        rest = self._process.stdout.read()  # not communicate(), which skips what readline() has read ahead
        self._process.wait(ENDS_S_MAX)
        self._errors.seek(0)
        return rest, self._errors.read()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    started: list[ServeProcess] = []

    def start(*options: Any, **more: Any) -> ServeProcess:
        started.append(ServeProcess(tmp_path, *options, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_examples_are_printed_after_the_startup_line_with_the_bound_address(serve: Callable[..., Any]) -> None:
    node = serve("--examples")
    port = re.match(r"headrace node 1 of cluster \S+ serves on 127\.0\.0\.1:(\d+), http://", node.line())[1]
    text, _ = node.stop()
    assert f"headrace topics create first --partitions 3 -b 127.0.0.1:{port}" in text
    assert f"kcat -b 127.0.0.1:{port}" in text and "/health" in text


@pytest.mark.parametrize("config_source", ["flag", "setting", "file", "environment"])
def test_logs_are_json_when_configured_by_flag_setting_file_or_environment(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config_source: str
) -> None:
    monkeypatch.delenv("HEADRACE_LOG_FORMAT", raising=False)
    options = {"flag": ["--log-format", "json"], "setting": ["-c", "headrace.log.format=json"]}.get(config_source, [])
    if config_source == "environment":
        monkeypatch.setenv("HEADRACE_LOG_FORMAT", "json")
    if config_source == "file":
        file = tmp_path / "server.properties"
        file.write_text("process.roles=broker,controller\nnode.id=1\nheadrace.log.format=json\n")
        options = ["--config", str(file)]
    node = serve(*options, "-c", "no.such.option=1")  # causes a warning before the node exists
    assert "serves on" in node.line()
    _, errors = node.stop()
    logged = [json.loads(line) for line in errors.splitlines()]
    assert logged[0]["level"] == "WARNING" and "no.such.option" in logged[0]["message"]
    assert logged[-1]["message"] == "stopped cleanly"
