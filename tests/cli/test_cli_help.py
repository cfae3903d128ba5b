"""The help texts of all commands and options: complete, and in one style."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import typer

from headrace.cli.app import app


def help_texts(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the help texts of a command, its arguments and options, and all commands below it."""
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.opts[0]}", getattr(parameter, "help", None) or ""
    for name in command.list_commands(click.Context(command)) if hasattr(command, "list_commands") else ():
        yield from help_texts(command.get_command(click.Context(command), name), f"{path} {name}")


def test_every_help_text_is_a_sentence() -> None:
    texts = list(help_texts(typer.main.get_command(app), "headrace"))
    assert len(texts) > 300
    assert [(where, text) for where, text in texts if not (text[:1].isupper() and text.endswith("."))] == []
