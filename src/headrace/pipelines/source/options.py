"""Options of the source, named like those of Spark's own Kafka source: a job only changes its format.

Names are case-insensitive. `kafka.…` options go to the client, except those that Spark's source refuses, for the same reasons.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.base.patterns import BadPattern, Pattern
from headrace.client.consumer.options import CONSUMER_OPTIONS
from headrace.client.wire.opening import client_values
from headrace.options.table import Kind, Option, OptionTable, Value, unused
from headrace.pipelines.schemas.options import DECODING_OPTIONS, DecodingOptions, parse_decoding
from headrace.pipelines.source.bounds import Bound, PartitionValues, check_order, named_bound

KAFKA = "kafka."
CLIENT_ID = "spark-headrace"
GROUP_ID_PREFIX = "spark-headrace"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")

_LOG = logging.getLogger("headrace.spark")
_DELAY = re.compile(r"([0-9]{1,12})\s*([a-z]*)\Z")
_DELAY_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

SOURCE_OPTIONS = OptionTable(
    Option("subscribe", Kind.LIST, None, "topics, with commas between"),
    Option("subscribePattern", Kind.STRING, None, "a pattern (RE2) that matches the whole name of a topic"),
    Option("assign", Kind.STRING, None, 'partitions as JSON: {"topic": [0, 1]}'),
    Option("startingOffsets", Kind.STRING, None, "earliest, latest or JSON; -1 is latest, -2 earliest"),
    Option("startingOffsetsByTimestamp", Kind.STRING, None, 'milliseconds as JSON: {"topic": {"0": 1000}}'),
    Option("startingTimestamp", Kind.LONG, None, "milliseconds, for all partitions", at_least=0),
    Option(
        "startingOffsetsByTimestampStrategy",
        Kind.STRING,
        "error",
        "what a partition without records since then means",
        one_of=("error", "latest"),
    ),
    Option("endingOffsets", Kind.STRING, None, "latest or JSON; -1 is latest"),
    Option("endingOffsetsByTimestamp", Kind.STRING, None, 'milliseconds as JSON: {"topic": {"0": 1000}}'),
    Option("endingTimestamp", Kind.LONG, None, "milliseconds, for all partitions", at_least=0),
    Option("failOnDataLoss", Kind.BOOLEAN, True, "whether records that are gone are an error or a gap that is counted"),
    Option("includeHeaders", Kind.BOOLEAN, False, "whether there is a column headers"),
    Option("columns", Kind.LIST, [], "the columns that are read at all, in this order"),
    Option("maxOffsetsPerTrigger", Kind.LONG, None, "of all partitions, shared out by what there is", at_least=1),
    Option("minOffsetsPerTrigger", Kind.LONG, None, "a batch waits for so many", at_least=1),
    Option("maxTriggerDelay", Kind.STRING, "15m", "longest time a broker waits for them"),
    Option(
        "maxBytesPerTrigger",
        Kind.LONG,
        None,
        "by the mean size that records of a partition have on disk",
        at_least=1,
    ),
    Option("minPartitions", Kind.INT, None, "tasks at least: long ranges are split", at_least=1),
    Option("maxRecordsPerPartition", Kind.LONG, None, "offsets of a task at most: longer ranges are split", at_least=1),
    Option("groupIdPrefix", Kind.STRING, GROUP_ID_PREFIX, "of the group whose offsets are committed"),
    Option("idleWaitMs", Kind.INT, 300, "how long a stream without new records waits at the brokers", at_least=0),
    Option("kafkaConsumer.pollTimeoutMs", Kind.LONG, 120_000, "how long a task waits for its next record", at_least=1),
    *DECODING_OPTIONS,
    *unused(
        "requests are tried again until kafka.default.api.timeout.ms",
        Option("fetchOffset.numRetries", Kind.INT, 3, "of Spark's own source", at_least=0),
        Option("fetchOffset.retryIntervalMs", Kind.LONG, 10, "of Spark's own source", at_least=0),
    ),
)
_REFUSED = {
    "auto.offset.reset": "the option startingOffsets says where a new query starts, and a restarted one goes on "
    "where it was: Spark keeps account of offsets, not a consumer",
    "key.deserializer": "keys are read as bytes; key.format says what else they are",
    "value.deserializer": "values are read as bytes; value.format says what else they are",
    "enable.auto.commit": "Spark keeps account of offsets; those of finished batches are committed for others to see",
    "interceptor.classes": "an interceptor could change what was read",
}


class Mode(Enum):
    ANY = "any"  # when Spark requests only the schema, the mode is not known yet
    BATCH = "batch"
    STREAM = "stream"


class Topics(Struct, frozen=True):
    """The subscribed partitions; exactly one field is set."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()


class SourceOptions(Struct, frozen=True):
    topics: Topics
    starting: Bound
    ending: Bound
    columns: tuple[str, ...]
    columns_chosen: bool  # whether the user chose the columns
    fail_on_data_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_s: float
    max_bytes: int | None
    min_partitions: int | None
    max_records: int | None
    group_id: str | None
    group_id_prefix: str
    idle_wait_ms: int
    stall_s_max: float
    client: dict[str, Value]  # parsed by CONSUMER_OPTIONS
    given: frozenset[str]  # names of the client options that were given
    decoding: DecodingOptions | None = None  # None: keys and values stay bytes


def parse_options(options: Mapping[str, str], mode: Mode = Mode.ANY) -> SourceOptions:
    """Parse the options; raise ConfigError that names the option if one is wrong, unknown (with the closest match) or missing."""
    values, client_given = _split(options)
    client = _client(client_given)
    given = {name for name in SOURCE_OPTIONS if name.lower() in {key.lower() for key in options}}
    _check_mode(given, mode)
    starting = named_bound(values, "starting", "earliest" if mode is Mode.BATCH else "latest")
    ending = named_bound(values, "ending", "latest")
    if mode is Mode.BATCH:
        check_order(starting, ending)
    minimum, maximum = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if isinstance(minimum, int) and isinstance(maximum, int) and minimum > maximum:
        raise ConfigError(f"minOffsetsPerTrigger={minimum} is more than maxOffsetsPerTrigger={maximum}")
    read: dict[str, Any] = values
    topics = _topics(values)
    decoding = parse_decoding(values, (*topics.names, *(topic for topic, _ in topics.assigned)))
    return SourceOptions(
        topics=topics,
        starting=starting,
        ending=ending,
        columns=columns_of(values, others=decoding is not None),
        columns_chosen=bool(values["columns"]),
        fail_on_data_loss=read["failOnDataLoss"],
        max_offsets=read["maxOffsetsPerTrigger"],
        min_offsets=read["minOffsetsPerTrigger"],
        max_delay_s=delay_ms("maxTriggerDelay", read["maxTriggerDelay"]) / 1000,
        max_bytes=read["maxBytesPerTrigger"],
        min_partitions=read["minPartitions"],
        max_records=read["maxRecordsPerPartition"],
        group_id=None if client["group.id"] is None else str(client["group.id"]),
        group_id_prefix=read["groupIdPrefix"],
        idle_wait_ms=read["idleWaitMs"],
        stall_s_max=read["kafkaConsumer.pollTimeoutMs"] / 1000,
        client=client,
        given=frozenset(client_given),
        decoding=decoding,
    )


def _split(options: Mapping[str, str]) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the source's options, parsed, and the client's options as given."""
    known = {name.lower(): option for name, option in SOURCE_OPTIONS.items()}
    lower = OptionTable(*(Option(name.lower(), Kind.STRING, None, "") for name in (*SOURCE_OPTIONS, *KAFKA_NAMES)))
    values: dict[str, Value] = {name: option.default for name, option in SOURCE_OPTIONS.items()}
    client: dict[str, str] = {}
    for name, text in options.items():
        name = name.lower()
        if name.startswith(KAFKA):
            client[name.removeprefix(KAFKA)] = text
            continue
        option = known.get(name)
        if option is None:
            raise ConfigError(f"{name} is no option of format headrace{_nearest(name, lower)}")
        values[option.name] = option.parse(text)
        if option.unused is not None:
            _LOG.warning("%s has no effect: %s", option.name, option.unused)
    return values, client


def _nearest(name: str, lower: OptionTable) -> str:
    found = lower.suggestion(name)
    for known in (*SOURCE_OPTIONS, *KAFKA_NAMES):
        found = re.sub(rf"mean {re.escape(known.lower())}\?", f"mean {known}?", found)
    return found


KAFKA_NAMES = tuple(KAFKA + name for name in CONSUMER_OPTIONS)


def _client(given: Mapping[str, str]) -> dict[str, Value]:
    for name, why in _REFUSED.items():
        if name in given:
            raise ConfigError(f"{KAFKA}{name} cannot be set: {why}")
    if not given.get("bootstrap.servers", "").strip():
        raise ConfigError(f"{KAFKA}bootstrap.servers must be set: brokers to connect to first, as host:port")
    try:
        return client_values(
            {"client.id": CLIENT_ID, **given}, CONSUMER_OPTIONS, lambda text: _LOG.warning("%s%s", KAFKA, text)
        )
    except ConfigError as error:
        raise ConfigError(f"{KAFKA}{error}") from error


def _check_mode(given: set[str], mode: Mode) -> None:
    for name in BATCH_ONLY:
        if mode is Mode.STREAM and name in given:
            raise ConfigError(f"{name} is for batch reads: a stream has no end")
    for name in STREAM_ONLY:
        if mode is Mode.BATCH and name in given:
            _LOG.warning("%s has no effect on a batch read", name)


def _topics(values: Mapping[str, Value]) -> Topics:
    given = [name for name in SUBSCRIPTIONS if values[name] is not None]
    if len(given) != 1:
        what = "no two of" if given else "one of"
        raise ConfigError(f"{what} {', '.join(SUBSCRIPTIONS)} must be set, to say what is read")
    (name,) = given
    value = values[name]
    if name == "subscribe":
        assert isinstance(value, list)
        if not value:
            raise ConfigError("subscribe names no topic")
        return Topics(names=tuple(sorted(set(value))))
    text = str(value).strip()
    if name == "assign":
        return Topics(assigned=_assigned(text))
    if not text:
        raise ConfigError("subscribePattern is empty")
    try:
        Pattern(text)
    except BadPattern as error:
        raise ConfigError(f"subscribePattern={text!r} is no pattern of RE2: {error}") from None
    return Topics(pattern=text)


def _assigned(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    wrong = ConfigError(f'assign={text!r} is not of the form {{"topic": [0, 1]}}')
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not any(found.values()):
        raise wrong
    for partitions in found.values():
        if not isinstance(partitions, list) or not all(type(one) is int and one >= 0 for one in partitions):
            raise wrong
    return tuple(sorted((topic, tuple(sorted(set(some)))) for topic, some in found.items() if some))


def columns_of(values: Mapping[str, Value], *, others: bool = False) -> tuple[str, ...]:
    """Return the names of the columns; `others` allows columns from decoding, which are checked once the schema is known."""
    requested = values["columns"]
    assert isinstance(requested, list)
    there = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    columns = []
    for name in requested:
        if name.lower() not in there and not others:
            raise ConfigError(f"columns: {name!r} is none; there are {', '.join(there.values())}")
        columns.append(there.get(name.lower(), name))
    if len(set(columns)) < len(columns):
        raise ConfigError(f"columns={','.join(requested)} names one of them twice")
    if columns:
        return tuple(columns)
    return (*COLUMNS, HEADERS) if values["includeHeaders"] else COLUMNS


def delay_ms(name: str, text: str) -> int:
    found = _DELAY.match(text.strip().lower())
    if found is None or found[2] not in _DELAY_MS:
        raise ConfigError(f"{name}={text!r} is no time; write 500ms, 30s, 15m, 2h or 1d")
    return int(found[1]) * _DELAY_MS[found[2]]


__all__ = ["Bound", "Mode", "PartitionValues", "SourceOptions", "Topics", "parse_options"]
