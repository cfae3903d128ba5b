"""`headrace transactions …`: list and describe transactions, find hanging ones, and end them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.cli.options import Bootstrap, CommandConfig, Json, command_group
from headrace.cli.output import Failures, format_duration, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.admin.hanging_transactions import Found, Search, abort_hanging, find_hanging
from headrace.client.admin.transactions import (
    ONGOING,
    ActiveProducer,
    PreparedTransaction,
    TransactionFilter,
    TransactionInfo,
    commit_prepared,
    describe_producers,
    describe_transaction,
    list_transactions,
    terminate_transaction,
    write_abort,
)
from headrace.client.wire.cluster import Cluster

MINUTE_MS = 60_000
INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
TIMEOUT_MINUTES = 15  # the default of transaction.max.timeout.ms
_YEAR_9999_MS = 253_402_300_799_999

app = command_group()


@app.callback()
def _group() -> None:
    """List and describe transactions; find and end hanging ones."""


Ids = Annotated[
    list[str] | None, typer.Argument(metavar="TRANSACTIONAL-ID", show_default=False, help="Transactional ids.")
]
MoreIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="Same as TRANSACTIONAL-ID; may be repeated."),
]
Topic = Annotated[str, typer.Option(metavar="NAME", help="Topic of the partition.", show_default=False)]
Partition = Annotated[
    int, typer.Option("-p", "--partition", min=0, max=INT32_MAX, help="Number of the partition.", show_default=False)
]


@app.command(name="list")
def show_list(
    state: Annotated[
        list[str] | None,
        typer.Option(help="Show only transactions in this state (Ongoing, CompleteCommit …); may be repeated."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option(help="Show only transactions of this producer id; may be repeated.", max=INT64_MAX),
    ] = None,
    duration_filter: Annotated[
        int | None,
        typer.Option(
            metavar="MS",
            min=0,
            max=INT64_MAX,
            help="Show only transactions that began longer ago than this, and ids without one.",
        ),
    ] = None,
    transactional_id_pattern: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Show only ids that fully match this regular expression.")
    ] = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """List transactional ids and their states.

    The state is that of the last transaction of each id.
    """
    requested = TransactionFilter(state or [], producer_id or [], duration_filter, transactional_id_pattern)
    listed = with_cluster(
        Target(bootstrap_server, command_config), lambda cluster: list_transactions(cluster, requested)
    )
    if json:
        show_json([one._asdict() for one in listed])
    else:
        show_table(("transactional id", "coordinator", "producer id", "state"), listed)


@app.command()
def describe(
    ids: Ids = None,
    transactional_id: MoreIds = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the transactions of transactional ids.

    Their coordinators report producer, state, start, timeout and partitions.
    """
    names = _ids(ids, transactional_id)
    failures = Failures()

    async def work(cluster: Cluster) -> list[TransactionInfo]:
        found = []
        for name in names:
            try:
                found.append(await describe_transaction(cluster, name))
            except KafkaError as error:
                failures.found(name, error.code, error.message)
        return found

    described = with_cluster(Target(bootstrap_server, command_config), work)
    if json:
        show_json([_transaction_json(one) for one in described])
    elif described:
        show_table(
            (
                "transactional id", "coordinator", "producer id", "epoch", "state", "timeout", "started", "open for",
                "partitions",
            ),
            [_transaction_row(one) for one in described],
        )  # fmt: skip
    failures.end()


@app.command()
def producers(
    topic: Topic,
    partition: Partition,
    broker_id: Annotated[
        int | None, typer.Option(help="Broker to query. Defaults to the leader of the partition.")
    ] = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the producers known to a partition.

    For each open transaction, the start offset is shown.
    """
    where = TopicPartition(topic, partition)
    found = with_cluster(
        Target(bootstrap_server, command_config), lambda cluster: describe_producers(cluster, where, broker_id)
    )
    if json:
        show_json([_producer_json(one) for one in found])
        return
    show_table(
        ("producer id", "epoch", "coordinator epoch", "last sequence", "last written", "start offset"),
        [
            (one.producer_id, one.producer_epoch, one.coordinator_epoch, one.last_sequence, _when(one.last_timestamp_ms),
             one.start_offset)
            for one in found
        ],
    )  # fmt: skip


@app.command(name="find-hanging")
def show_hanging(
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Search only this topic.")] = None,
    partition: Annotated[
        int | None,
        typer.Option("-p", "--partition", min=0, max=INT32_MAX, help="Search only this partition of --topic."),
    ] = None,
    broker_id: Annotated[int | None, typer.Option(help="Search only partitions that this broker leads.")] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(metavar="MINUTES", min=0, max=INT32_MAX, help="Largest transaction timeout of any producer."),
    ] = TIMEOUT_MINUTES,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Find hanging transactions.

    A transaction hangs if no coordinator will end it. Only those are considered whose last record is five minutes
    older than the largest timeout.
    """
    if partition is not None and topic is None:
        raise ConfigError("--partition needs --topic")
    where, timeout_ms, now_ms = Search(topic, partition, broker_id), max_transaction_timeout * MINUTE_MS, _now_ms()

    async def work(cluster: Cluster) -> Found:
        return await find_hanging(cluster, where, timeout_ms=timeout_ms, now_ms=now_ms)

    found = with_cluster(Target(bootstrap_server, command_config), work)
    failures = Failures()
    for refused, error in found.refused.items():
        failures.found(str(refused), error.code, error.message)
    if json:
        show_json(
            [
                _producer_json(one.producer) | {"transactional_id": one.transactional_id, "reason": one.reason}
                for one in found.hanging
            ]
        )
    else:
        show_table(
            ("topic", "partition", "start offset", "producer id", "epoch", "last written", "open for", "why"),
            [
                (*one.partition, one.start_offset, one.producer_id, one.producer_epoch, _when(one.last_timestamp_ms),
                 format_duration(now_ms - one.last_timestamp_ms), reason)
                for one, _, reason in found.hanging
            ],
        )  # fmt: skip
    failures.end()


@app.command()
def abort(
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int | None,
        typer.Option(
            min=0, max=INT64_MAX, help="Start offset of the transaction, as shown by find-hanging and producers."
        ),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=INT64_MAX,
            help="Producer id, with both epochs, instead of --start-offset; aborts without checking that the transaction hangs.",
        ),
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option(min=0, max=INT16_MAX, help="Epoch of the producer, with --producer-id.")
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option(min=-1, max=INT32_MAX, help="Epoch of the coordinator, with --producer-id.")
    ] = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Abort a hanging transaction in one partition.

    Consumers with read_committed, which wait at its first record, can then continue.
    """
    where, by_producer = TopicPartition(topic, partition), (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (by_producer == (None, None, None)):
        raise ConfigError("give either --start-offset, or --producer-id with --producer-epoch and --coordinator-epoch")
    if start_offset is None and None in by_producer:
        raise ConfigError("--producer-id, --producer-epoch and --coordinator-epoch must be given together")

    async def work(cluster: Cluster) -> tuple[int, int]:
        if start_offset is not None:
            found = await abort_hanging(cluster, where, start_offset)
            return found.producer_id, found.producer_epoch
        assert producer_id is not None and producer_epoch is not None and coordinator_epoch is not None
        await write_abort(cluster, where, producer_id, producer_epoch, coordinator_epoch)
        return producer_id, producer_epoch

    aborted, epoch = with_cluster(Target(bootstrap_server, command_config), work)
    print(f"{where}: aborted the transaction of producer {aborted} with epoch {epoch}")


@app.command()
def commit(
    ids: Ids = None,
    transactional_id: MoreIds = None,
    prepared: Annotated[
        str | None,
        typer.Option(
            metavar="PRODUCER-ID:EPOCH",
            help="Commit only if this is the prepared transaction, as recorded by its preparer.",
        ),
    ] = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Commit prepared two-phase transactions.

    This is for producers that will not return; `terminate` aborts their transactions instead.
    """
    names, expected = _ids(ids, transactional_id), None
    if prepared is not None:
        if len(names) > 1:
            raise ConfigError("--prepared works with exactly one transactional id")
        try:
            expected = PreparedTransaction.parse(prepared)
        except ValueError as error:
            raise ConfigError(f"--prepared: {error}") from None
    failures = Failures()

    async def work(cluster: Cluster) -> None:
        for name in names:
            try:
                before = await commit_prepared(cluster, name, expected)
            except KafkaError as error:
                failures.found(name, error.code, error.message)
            else:
                done = PreparedTransaction(before.producer_id, before.producer_epoch)
                print(f"{name}: committed transaction {done}: {' '.join(map(str, before.partitions))}")

    with_cluster(Target(bootstrap_server, command_config), work)
    failures.end()


@app.command()
def terminate(
    ids: Ids = None,
    transactional_id: MoreIds = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Fence producers and abort their transactions.

    The producers are given by their transactional ids.
    """
    names = _ids(ids, transactional_id)
    failures = Failures()

    async def work(cluster: Cluster) -> None:
        for name in names:
            try:
                before = await terminate_transaction(cluster, name)
            except KafkaError as error:
                failures.found(name, error.code, error.message)
            else:
                what = (
                    "aborted its transaction"
                    if before.state == ONGOING
                    else f"no transaction was open ({before.state})"
                )
                print(f"{name}: fenced its producer; {what}")

    with_cluster(Target(bootstrap_server, command_config), work)
    failures.end()


def _ids(ids: list[str] | None, more: list[str] | None) -> list[str]:
    names = [*(ids or []), *(more or [])]
    if not names:
        raise ConfigError("give at least one transactional id")
    return names


# --- output


def _now_ms() -> int:
    return int(time.time() * 1000)


def _when(timestamp_ms: int | None) -> str | None:
    """Format a timestamp; show it as a number if it is past the year 9999, because producers may write any number."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    if timestamp_ms > _YEAR_9999_MS:
        return str(timestamp_ms)
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _transaction_row(one: TransactionInfo) -> tuple[object, ...]:
    return (
        *one[:5],
        "none: two-phase commit" if one.timeout_ms is None else format_duration(one.timeout_ms),
        _when(one.started_ms),
        None if one.started_ms is None or one.state != ONGOING else format_duration(_now_ms() - one.started_ms),
        " ".join(map(str, one.partitions)),
    )


def _transaction_json(one: TransactionInfo) -> dict[str, Any]:
    partitions = [{"topic": topic, "partition": partition} for topic, partition in one.partitions]
    return one._asdict() | {"two_phase_commit": one.timeout_ms is None, "partitions": partitions}


def _producer_json(one: ActiveProducer) -> dict[str, Any]:
    fields = one._asdict()
    del fields["partition"]
    return {"topic": one.partition.topic, "partition": one.partition.partition} | fields
