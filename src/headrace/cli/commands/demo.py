"""`headrace demo`: a web shop with a node and Spark pipelines; `make run` starts it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigError
from headrace.cli.options import single_command
from headrace.demo.display.state import USUAL_PORT
from headrace.demo.folders import Folders
from headrace.demo.main import RATE, Options, run

BROKERS_MAX = 9  # processes of a demo on one machine

app = single_command()


@app.command()
def demo(
    events: Annotated[
        int | None,
        typer.Option(
            min=1, help="Stop after this many events and check the results. Defaults to running until Ctrl-C."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0, help=f"Events per second; 0 for no limit. Defaults to {RATE:.0f}, or to no limit with --events."
        ),
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(min=1, max=BROKERS_MAX, help="Number of brokers; several form a cluster with three replicas."),
    ] = 1,
    folder: Annotated[
        Path, typer.Option(help="Folder for data, tables and logs; a cluster has a folder of its own in it.")
    ] = Path(".work"),
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the first broker. If it is in use, the next free port.")
    ] = USUAL_PORT,
    plain: Annotated[bool, typer.Option("--plain", help="Print plain lines of text, even on a terminal.")] = False,
) -> None:
    """Run a web shop: a node, a generator of events, and Spark pipelines over them."""
    if find_spec("pyspark") is None:
        raise ConfigError("the demo needs Spark: pip install 'headrace[spark]'")
    if rate is None:
        rate = RATE if events is None else 0.0
    work = folder.absolute() if brokers == 1 else folder.absolute() / f"brokers-{brokers}"
    folders = Folders(work, Path(".headrace").absolute(), brokers)
    raise typer.Exit(run(Options(folders, events, rate, port, plain)))
