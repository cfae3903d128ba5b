"""Options of the sink: those of Spark's own Kafka sink, and those of exactly-once.

Names are case-insensitive; `kafka.…` options go to the producer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.client.producer.options import PRODUCER_OPTIONS, producer_settings
from headrace.client.wire.opening import client_values
from headrace.options.table import Kind, Option, OptionTable, Value, unused
from headrace.pipelines.sink.commands import Choices, OnTorn

KAFKA = "kafka."
CLIENT_ID = "spark-headrace-sink"
PREFIX = "headrace-sink"
PROGRESS_TOPIC = "headrace-sink-progress"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
TRANSACTION_TIMEOUT_MS = 900_000  # the maximum that brokers allow by default (transaction.max.timeout.ms)
ID_CHARS_MAX = 128

_LOG = logging.getLogger("headrace.spark")
# A transactional id is prefix:sink.rest, so neither may contain a colon, and the sink no dot.
_PREFIX = re.compile(r"[A-Za-z0-9_.-]+\Z")
_SINK = re.compile(r"[A-Za-z0-9_-]+\Z")

SINK_OPTIONS = OptionTable(
    Option("topic", Kind.STRING, None, "the topic for all rows, which overrides their column topic"),
    Option("deliveryGuarantee", Kind.STRING, EXACTLY_ONCE, "", one_of=(EXACTLY_ONCE, AT_LEAST_ONCE)),
    Option("transactionalIdPrefix", Kind.STRING, PREFIX, "of all transactional ids that are used"),
    Option("writeId", Kind.STRING, None, "of a batch write: a write that is repeated with the same id is stored once"),
    Option("writeVersion", Kind.LONG, 0, "of a writeId: each is written once, and in rising order", at_least=0),
    Option(
        "writers", Kind.INT, None, "1: one task writes all, in one transaction with the decision", at_least=1, at_most=1
    ),
    Option("onTornBatch", Kind.STRING, "fail", "", one_of=tuple(one.value for one in OnTorn)),
    Option("skipOlderBatches", Kind.BOOLEAN, False, "leave batches out that a checkpoint set back repeats"),
    Option("twoPhaseCommit", Kind.BOOLEAN, False, "transactions without timeout, if the brokers allow it (KIP-939)"),
    Option("progressTopic", Kind.STRING, PROGRESS_TOPIC, "which batches are decided"),
    Option(
        "progressReplicationFactor", Kind.INT, 3, "of that topic when it is made; at most one per broker", at_least=1
    ),
    Option("checkpointLocation", Kind.STRING, None, "Spark's"),
    *unused("headers are written if there is a column headers", Option("includeHeaders", Kind.BOOLEAN, False, "")),
    *unused(
        "Spark has its own use for it",
        Option("path", Kind.STRING, None, ""),
        Option("queryName", Kind.STRING, None, ""),
    ),
)
_REFUSED = {
    "transactional.id": "each task has one of its own, which begins with the option transactionalIdPrefix",
    "key.serializer": "keys are written as bytes; make strings or binary of them with functions of DataFrames",
    "value.serializer": "values are written as bytes; make strings or binary of them with functions of DataFrames",
    "transaction.two.phase.commit.enable": "that is the option twoPhaseCommit",
    "interceptor.classes": "an interceptor could change what is written",
}


class SinkOptions(Struct, frozen=True):
    topic: str | None
    exactly_once: bool
    prefix: str
    write_id: str | None
    write_version: int
    single: bool
    choices: Choices
    two_phase: bool
    progress_topic: str
    progress_replication: int
    producer: dict[str, str]  # the producer's options as given
    client: dict[str, Value]  # parsed by PRODUCER_OPTIONS


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options; raise ConfigError that names the option if one is wrong, unknown (with the closest match) or missing."""
    read, producer = _split(options)
    exactly_once = read["deliveryGuarantee"] == EXACTLY_ONCE
    for name, pattern, others in (("transactionalIdPrefix", _PREFIX, "- _ and dots"), ("writeId", _SINK, "- and _")):
        if read[name] is not None and (len(read[name]) > ID_CHARS_MAX or not pattern.match(read[name])):
            raise ConfigError(f"{name}={read[name]!r} is not made of at most {ID_CHARS_MAX} letters, digits, {others}")
    if exactly_once:
        if "transaction.timeout.ms" not in producer and not read["twoPhaseCommit"]:
            producer["transaction.timeout.ms"] = str(TRANSACTION_TIMEOUT_MS)
    elif read["writers"] is not None or read["writeId"] is not None:
        raise ConfigError(f"writers and writeId are for deliveryGuarantee={EXACTLY_ONCE}")
    return SinkOptions(
        topic=read["topic"],
        exactly_once=exactly_once,
        prefix=read["transactionalIdPrefix"],
        write_id=read["writeId"],
        write_version=read["writeVersion"],
        single=read["writers"] == 1,
        choices=Choices(OnTorn(read["onTornBatch"]), read["skipOlderBatches"]),
        two_phase=read["twoPhaseCommit"],
        progress_topic=read["progressTopic"],
        progress_replication=read["progressReplicationFactor"],
        producer=producer,
        client=_client(producer, exactly_once, read["twoPhaseCommit"]),
    )


def _split(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    known = {name.lower(): option for name, option in SINK_OPTIONS.items()}
    values: dict[str, Any] = {name: option.default for name, option in SINK_OPTIONS.items()}
    producer = {"client.id": CLIENT_ID}
    for name, text in options.items():
        if name.lower().startswith(KAFKA):
            producer[name.lower().removeprefix(KAFKA)] = text
            continue
        option = known.get(name.lower())
        if option is None:
            raise ConfigError(f"{name} is no option of a write to format headrace{SINK_OPTIONS.suggestion(name)}")
        values[option.name] = option.parse(text)
    return values, producer


def _client(producer: Mapping[str, str], exactly_once: bool, two_phase: bool) -> dict[str, Value]:
    for name, why in _REFUSED.items():
        if name in producer:
            raise ConfigError(f"{KAFKA}{name} cannot be set: {why}")
    if not producer.get("bootstrap.servers", "").strip():
        raise ConfigError(f"{KAFKA}bootstrap.servers must be set: brokers to connect to first, as host:port")
    given = {**producer, "transactional.id": "checked"} if exactly_once else dict(producer)
    if two_phase:
        given["transaction.two.phase.commit.enable"] = "true"
    try:
        # Raises if options contradict each other.
        producer_settings(client_values(given, PRODUCER_OPTIONS, lambda text: None), given)
        return client_values(producer, PRODUCER_OPTIONS, lambda text: _LOG.warning("%s%s", KAFKA, text))
    except ConfigError as error:
        raise ConfigError(f"{KAFKA}{error}") from error
