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
    pretty_exceptions_enable=False,
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
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "-S",
            "--add-scram",
            metavar="SCRAM-SHA-256=[name=…,password=…]",
            help="a user that exists from the beginning; may be repeated",
        ),
    ] = None,
) -> None:
    """Make the data directories of a node (serve does it too, on its first start)."""
    from headrace.cli.formatting import run

    run(config, set or [], cluster_id, ignore_formatted, add_scram or [])


topics = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics.", rich_markup_mode=None)
app.add_typer(topics, name="topics")

Bootstrap = Annotated[
    str, typer.Option("-b", "--bootstrap-server", metavar="HOST:PORT", help="any broker of the cluster")
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document instead of a table")]
LOCAL = "localhost:9092"


@topics.command("list")
def topics_list(bootstrap_server: Bootstrap = LOCAL, json: Json = False) -> None:
    """All topics with their partitions and replicas."""
    from headrace.cli.topics import show_all

    show_all(bootstrap_server, json)


@topics.command("create")
def topics_create(
    name: str,
    partitions: Annotated[int, typer.Option(help="-1: the cluster's default")] = -1,
    replication_factor: Annotated[int, typer.Option(help="-1: the cluster's default")] = -1,
    config: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="an option of the topic")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists")] = False,
    bootstrap_server: Bootstrap = LOCAL,
) -> None:
    """Create a topic."""
    from headrace.cli.topics import create

    create(bootstrap_server, name, partitions, replication_factor, config or [], if_not_exists)


@topics.command("describe")
def topics_describe(name: str, bootstrap_server: Bootstrap = LOCAL, json: Json = False) -> None:
    """Leaders, replicas and options of a topic."""
    from headrace.cli.topics import describe

    describe(bootstrap_server, name, json)


@topics.command("delete")
def topics_delete(names: list[str], bootstrap_server: Bootstrap = LOCAL) -> None:
    """Delete topics and everything in them."""
    from headrace.cli.topics import delete

    delete(bootstrap_server, names)


@app.command()
def produce(
    topic: str,
    key_separator: Annotated[
        str | None, typer.Option("-k", "--key-separator", help="text before it on a line is the key")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", help="else by the key's hash, or in turn")
    ] = None,
    compression: Annotated[
        str, typer.Option("-z", "--compression-type", help="none, gzip, snappy, lz4 or zstd")
    ] = "none",
    acks: Annotated[int, typer.Option(help="-1 (all), 0 or 1")] = -1,
    header: Annotated[list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE")] = None,
    bootstrap_server: Bootstrap = LOCAL,
) -> None:
    """Send each line of standard input as a record."""
    from headrace.cli.produce import run

    run(bootstrap_server, topic, key_separator, partition, compression, acks, header or [])


@app.command()
def consume(
    topic: str,
    partition: Annotated[int | None, typer.Option("-p", "--partition", help="else all")] = None,
    offset: Annotated[str, typer.Option("-o", "--offset", help="earliest, latest, or a number")] = "earliest",
    max_messages: Annotated[int | None, typer.Option("-n", "--max-messages")] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", "--exit", help="stop at the end of all partitions")] = False,
    format: Annotated[str, typer.Option("-f", "--format", help="value, key-value or json")] = "value",
    bootstrap_server: Bootstrap = LOCAL,
) -> None:
    """Print records as they come."""
    from headrace.cli.consume import run

    run(bootstrap_server, topic, partition, offset, max_messages, exit_at_end, format)


@app.command("dump-log")
def dump_log(
    files: list[Path],
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="show the records, not only the batches")
    ] = False,
    print_data: Annotated[
        bool, typer.Option("--print-data-log", help="show keys and values (means --deep-iteration)")
    ] = False,
    cluster_metadata: Annotated[
        bool, typer.Option("--cluster-metadata-decoder", help="values are metadata records")
    ] = False,
) -> None:
    """Print and check files of a data directory: .log, .index, .timeindex, .txnindex, .snapshot, .checkpoint."""
    from headrace.cli.dump_log import run

    run(files, deep=deep_iteration or print_data or cluster_metadata, data=print_data, metadata=cluster_metadata)
