"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="An event streaming platform that speaks Apache Kafka's protocol.",
    rich_markup_mode=None,
)

Overrides = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="NAME=VALUE", help="a setting, in Kafka's names")
]


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", help="a server.properties; else a single node on localhost:9092")
    ] = None,
    set: Overrides = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR")] = "INFO",
) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    from headrace.cli.serve import run

    run(config, set or [], log_level)


@app.command("format")
def format_(
    config: Annotated[Path | None, typer.Option("--config")] = None,
    set: Overrides = None,
    cluster_id: Annotated[
        str | None, typer.Option("-t", "--cluster-id", help="22 characters of URL-safe base64; else a new one")
    ] = None,
    ignore_formatted: Annotated[bool, typer.Option(help="leave directories alone that are formatted already")] = False,
) -> None:
    """Make the data directories of a node (serve does it too, on its first start)."""
    from headrace.cli.formatting import run

    run(config, set or [], cluster_id, ignore_formatted)
