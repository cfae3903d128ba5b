"""Runs `headrace …` in the test process against a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from headrace.base.errors import HeadraceError
from headrace.cli.app import app

OFFLINE_COMMANDS = ("dump-log", "format", "settings", "serve")


class CommandLine:
    def __init__(self, bootstrap: str | None = None, config: Path | None = None) -> None:
        """Set the node's address and, with `config`, a properties file with the login."""
        self.bootstrap = bootstrap
        self.config = config

    def __call__(self, *arguments: Any, stdin: str | None = None, fails: bool = False) -> str:
        """Run a command and return its standard output, or its error message if it `fails`."""
        extra = ["-b", self.bootstrap] if arguments[0] not in OFFLINE_COMMANDS and self.bootstrap else []
        extra += ["--command-config", str(self.config)] if self.config else []
        result = CliRunner().invoke(app, [*map(str, (*arguments, *extra))], input=stdin)
        if fails:
            assert result.exit_code == 1, result.output
            return str(result.exception) if isinstance(result.exception, HeadraceError) else result.output
        assert result.exit_code == 0, result.output + str(result.exception)
        return result.stdout
