"""The help texts of all commands and options: complete, and in one style."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import typer

from headrace.cli.app import app

SUMMARY_CHARACTERS_MAX = 58  # fits on a line of 80 characters next to the longest command


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


def test_the_summary_of_every_command_fits_on_a_line() -> None:
    root: Any = typer.main.get_command(app)
    groups = {name: root.get_command(click.Context(root), name) for name in root.list_commands(click.Context(root))}
    commands = [(group, name, one) for group, of in groups.items() for name, one in getattr(of, "commands", {}).items()]
    assert len(commands) > 30
    summaries = {f"{group} {name}": one.get_short_help_str(SUMMARY_CHARACTERS_MAX) for group, name, one in commands}
    assert {name: text for name, text in summaries.items() if not text.endswith(".") or text.endswith("...")} == {}
