"""The list of commands.

The module of a command is only imported when it runs, so that `serve` starts at once and `--help` is quick.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace import __version__

# Command -> the module with its `app`, and its help text.
COMMANDS = {
    "serve": ("headrace.cli.commands.serve", "Run a node until SIGTERM or Ctrl-C."),
    "format": (
        "headrace.cli.commands.format",
        "Format the data directories of a node (`serve` formats empty ones on its first start).",
    ),
    "cluster": (
        "headrace.cli.commands.cluster",
        "Run a cluster on this machine: start, status, kill, pause, resume, stop, delete.",
    ),
    "settings": (
        "headrace.cli.commands.settings",
        "Show the options of a node: meaning, default, allowed values and current value.",
    ),
    "topics": ("headrace.cli.commands.topics", "List, describe, create, alter and delete topics."),
    "configs": (
        "headrace.cli.commands.configs",
        "Describe and alter the options of topics, brokers and groups, and the quotas of users and clients.",
    ),
    "offsets": ("headrace.cli.commands.offsets", "Show the first or last offsets of partitions, or offsets by time."),
    "records": ("headrace.cli.commands.records", "Delete records from the beginning of partitions."),
    "groups": ("headrace.cli.commands.groups", "List, describe and delete groups; reset and delete their offsets."),
    "transactions": (
        "headrace.cli.commands.transactions",
        "List and describe transactions; find and end hanging ones.",
    ),
    "log-dirs": ("headrace.cli.commands.log_dirs", "Show the data directories of brokers and the partitions in them."),
    "quorum": ("headrace.cli.commands.quorum", "Show the controllers and their replication progress."),
    "acls": ("headrace.cli.commands.acls", "List, add and remove access rules."),
    "users": ("headrace.cli.commands.users", "List, add and remove SCRAM users."),
    "produce": ("headrace.cli.commands.produce", "Send each line of standard input as a record."),
    "consume": ("headrace.cli.commands.consume", "Print records as they arrive."),
    "pipelines": (
        "headrace.cli.commands.pipelines",
        "Run, validate and monitor pipelines that process topics, files and tables with Spark.",
    ),
    "demo": ("headrace.cli.commands.demo", "Run the demo: a web shop with a node and Spark pipelines."),
    "dump-log": ("headrace.cli.commands.dump_log", "Print and check the files of a data directory."),
}


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        command: Any = typer.main.get_command(import_module(found[0]).app)
        command.name, command.help = cmd_name, found[1]
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            # In the words of click, which answers for the commands below these.
            near = get_close_matches(args[0], COMMANDS)
            found = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{found}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list from COMMANDS, so that the help imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="An event streaming platform that speaks Apache Kafka's protocol.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options that precede the command. The help text is that of `app`."""
