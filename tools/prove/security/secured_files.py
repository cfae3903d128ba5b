"""The files and commands of docs/security.md in a separate directory, with only paths and ports replaced."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from headrace.testing.processes import NodeProcess, free_port
from tools.prove.registry import ROOT
from tools.prove.security.certificates import make_certificate

PAGE = ROOT / "docs/security.md"
COMMAND_S_MAX = 120.0
_BLOCK = re.compile(r"^```(?:properties|sh)\n# (?P<name>\S+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_ETC, _DATA, _BROKER_PORT, _CONTROLLER_PORT = "/etc/headrace", "/var/lib/headrace", "9092", "9093"
_SERVER, _CLUSTER = "process.roles=", "controller.quorum.voters="


def blocks() -> dict[str, str]:
    """Return the named blocks of the page: files by path, commands by the word in their first line."""
    found = {match["name"]: match["text"] for match in _BLOCK.finditer(PAGE.read_text())}
    assert len(found) == len(_BLOCK.findall(PAGE.read_text())), f"two blocks of {PAGE.name} have the same name"
    return found


def server_files() -> list[str]:
    """Return the names of the files that configure a single server."""
    return [Path(name).name for name, text in blocks().items() if _SERVER in text and _CLUSTER not in text]


class SecuredFiles:
    """The files of the page, written to a directory, and its commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.controller_port = free_port(), free_port()
        while self.controller_port == self.port:
            self.controller_port = free_port()
        self._etc = directory / "etc"
        self._etc.mkdir()
        certificate = make_certificate(self._etc)
        self.authority = self._etc / "authority.pem"
        certificate.trusted.rename(self.authority)
        certificate.store.rename(self._etc / "server.pem")
        self._commands: dict[str, list[str]] = {}
        for name, text in blocks().items():
            localized = self._localize(text)
            if name.startswith(_ETC):
                Path(self._localize(name)).write_text(localized)
            else:
                self._commands[name] = localized.splitlines()

    def _localize(self, text: str) -> str:
        text = self._localize_paths(text).replace(f":{_BROKER_PORT}", f":{self.port}")
        return text.replace(f":{_CONTROLLER_PORT}", f":{self.controller_port}")

    def _localize_paths(self, text: str) -> str:
        return text.replace(_ETC, str(self._etc)).replace(_DATA, str(self.directory / "data"))

    def page_file(self, name: str) -> str:
        """Return a file of the page, with the paths of this directory."""
        return self._localize_paths(blocks()[f"{_ETC}/{name}"])

    def file(self, name: str) -> Path:
        return self._etc / name

    def properties(self, name: str) -> dict[str, str]:
        lines = self.file(name).read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    def run(self, name: str, config: str | None = None) -> None:
        """Run the commands of a block in a shell, with the `headrace` of this Python; `config` replaces cluster.properties."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        for command in self._commands[name]:
            line = command if config is None else command.replace(str(self.file("cluster.properties")), config)
            done = subprocess.run(
                ["bash", "-c", line],
                capture_output=True,
                text=True,
                timeout=COMMAND_S_MAX,
                env={**os.environ, "PATH": path},
            )
            assert done.returncode == 0, f"{line}\nexited with {done.returncode}: {done.stdout}{done.stderr}"


class SecuredNode(NodeProcess):
    """`headrace serve --config FILE` with a file of the page. Only /metrics is disabled, whose port may be in use."""

    def __init__(self, files: SecuredFiles, name: str = "server.properties") -> None:
        super().__init__(directory=files.directory)
        self._file = files.file(name)
        self.port = files.port

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "headrace", "serve", "--config", str(self._file), "--strict"]
        return [*serve, "-c", "headrace.http.listener="]
