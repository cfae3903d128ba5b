"""Producer options with Kafka's names and defaults, and the settings derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.client.retry import Backoff
from headrace.client.wire.options import CONNECTION_OPTIONS
from headrace.options.table import INT_MAX, Kind, Option, OptionTable, Value, unused
from headrace.records.compression import LEVELS, Codec

IN_FLIGHT_IDEMPOTENT_MAX = 5  # number of batches of a producer that brokers remember
ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
PARTITIONERS = ("", "RoundRobinPartitioner", ROUND_ROBIN, "round_robin")
GZIP_DEFAULT_LEVEL = -1
ARROW_BATCH_BYTES = 1024 * 1024  # faster than 256 or 512 KiB on every broker tried, and accepted by topics by default

PRODUCER_OPTIONS = OptionTable(
    *CONNECTION_OPTIONS,
    Option("client.id", Kind.STRING, "headrace-producer", "the name that brokers log"),
    Option("acks", Kind.STRING, "all", "replicas that must have a batch before it counts as sent", one_of=tuple(ACKS)),
    Option("enable.idempotence", Kind.BOOLEAN, True, "whether a batch that is sent again is written once"),
    Option("max.in.flight.requests.per.connection", Kind.INT, 5, "unacknowledged requests per broker", at_least=1),
    Option("retries", Kind.INT, INT_MAX, "number of retries of a batch", at_least=0),
    Option("delivery.timeout.ms", Kind.INT, 120_000, "time limit from send to the delivery of a record", at_least=0),
    Option("linger.ms", Kind.LONG, 5, "how long a batch waits for more records", at_least=0),
    Option("batch.size", Kind.INT, 16_384, "bytes of a batch of records, before compression", at_least=0),
    Option(
        "headrace.arrow.batch.size",
        Kind.INT,
        ARROW_BATCH_BYTES,
        "the same for Arrow rows, of which many come at once: the larger of both, but at most max.request.size",
        at_least=1,
    ),
    Option("buffer.memory", Kind.LONG, 33_554_432, "bytes of all records that are not sent yet", at_least=0),
    Option("max.block.ms", Kind.LONG, 60_000, "time that send waits for buffer space or metadata", at_least=0),
    Option("max.request.size", Kind.INT, 1_048_576, "bytes of a request, and of a record", at_least=1),
    Option(
        "compression.type",
        Kind.STRING,
        "none",
        "the codec of batches",
        one_of=tuple(codec.name.lower() for codec in Codec),
    ),
    Option(
        "compression.gzip.level",
        Kind.INT,
        GZIP_DEFAULT_LEVEL,
        "1 to 9, or -1",
        at_least=-1,
        at_most=LEVELS[Codec.GZIP][1],
        never=(0,),
    ),
    Option(
        "compression.lz4.level", Kind.INT, 9, "1 to 17", at_least=LEVELS[Codec.LZ4][0], at_most=LEVELS[Codec.LZ4][1]
    ),
    Option(
        "compression.zstd.level",
        Kind.INT,
        3,
        "-131072 to 22",
        at_least=LEVELS[Codec.ZSTD][0],
        at_most=LEVELS[Codec.ZSTD][1],
    ),
    Option("partitioner.class", Kind.CLASS, "", "empty: by the key's hash, else sticky", one_of=PARTITIONERS),
    Option("partitioner.ignore.keys", Kind.BOOLEAN, False, "sticky also for records with keys"),
    Option("partitioner.adaptive.partitioning.enable", Kind.BOOLEAN, True, "partitions with short queues get more"),
    Option("transactional.id", Kind.STRING, None, "makes transactions possible"),
    Option("transaction.timeout.ms", Kind.INT, 60_000, "the coordinator aborts what is open longer", at_least=1),
    Option("transaction.two.phase.commit.enable", Kind.BOOLEAN, False, "prepared transactions wait for a decision"),
    Option("metadata.max.age.ms", Kind.LONG, 300_000, "maximum age of cached metadata", at_least=0),
    Option(
        "retry.backoff.ms",
        Kind.LONG,
        100,
        "pause before the first retry of a batch; it doubles with each one",
        at_least=0,
    ),
    Option("retry.backoff.max.ms", Kind.LONG, 1000, "longest pause", at_least=0),
    Option(
        "reconnect.backoff.ms", Kind.LONG, 50, "pause before the first reconnect; it doubles with each one", at_least=0
    ),
    Option("reconnect.backoff.max.ms", Kind.LONG, 1000, "longest pause", at_least=0),
    *unused(
        "keys and values are bytes here",
        Option("key.serializer", Kind.CLASS, None, "only in a JVM"),
        Option("value.serializer", Kind.CLASS, None, "only in a JVM"),
        Option("interceptor.classes", Kind.LIST, [], "only in a JVM"),
    ),
    *unused(
        "a slow partition is avoided by the length of its queue",
        Option("partitioner.availability.timeout.ms", Kind.LONG, 0, "skip stuck partitions", at_least=0),
    ),
    *unused(
        "the brokers of bootstrap.servers are used whenever others do not respond",
        Option("metadata.recovery.strategy", Kind.STRING, "rebootstrap", "", one_of=("rebootstrap", "none")),
        Option("metadata.recovery.rebootstrap.trigger.ms", Kind.LONG, 300_000, "", at_least=0),
        Option("client.dns.lookup", Kind.STRING, "use_all_dns_ips", ""),
    ),
    *unused(
        "sockets use the defaults of the system",
        Option("connections.max.idle.ms", Kind.LONG, 540_000, "idle close"),
        Option("metadata.max.idle.ms", Kind.LONG, 300_000, "forget idle topics", at_least=5000),
        Option("send.buffer.bytes", Kind.INT, 131_072, "of a socket", at_least=-1),
        Option("receive.buffer.bytes", Kind.INT, 32_768, "of a socket", at_least=-1),
        Option("enable.metrics.push", Kind.BOOLEAN, True, "KIP-714"),
    ),
)


class ProducerSettings(Struct, frozen=True):
    """Settings of a producer; times are in seconds unless the name says otherwise."""

    acks: int
    idempotent: bool
    in_flight_max: int
    retries: int
    delivery_s: float
    request_s: float
    linger_s: float
    batch_bytes: int
    arrow_batch_bytes: int
    buffer_bytes: int
    block_s: float
    request_bytes_max: int
    codec: Codec
    level: int | None
    round_robin: bool
    ignore_keys: bool
    adaptive: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    two_phase: bool
    metadata_age_s: float
    retry_backoff: Backoff
    reconnect_backoff: Backoff


def producer_settings(values: Mapping[str, Value], given: Mapping[str, object]) -> ProducerSettings:
    """Derive the settings from `values` (by PRODUCER_OPTIONS). Raise ConfigError if options contradict each other.

    `given` holds the options that were set explicitly.
    """

    def number(name: str) -> int:
        return cast(int, values[name])

    def seconds(name: str) -> float:
        return number(name) / 1000

    codec = Codec[str(values["compression.type"]).upper()]
    transactional_id = values["transactional.id"]
    assert transactional_id is None or isinstance(transactional_id, str)
    request_bytes_max = number("max.request.size")
    batch_bytes = max(1, min(number("batch.size"), request_bytes_max))
    return ProducerSettings(
        acks=ACKS[str(values["acks"])],
        idempotent=_idempotent(values, given),
        in_flight_max=number("max.in.flight.requests.per.connection"),
        retries=number("retries"),
        delivery_s=_delivery_s(values, given),
        request_s=seconds("request.timeout.ms"),
        linger_s=seconds("linger.ms"),
        batch_bytes=batch_bytes,
        arrow_batch_bytes=max(batch_bytes, min(number("headrace.arrow.batch.size"), request_bytes_max)),
        buffer_bytes=number("buffer.memory"),
        block_s=seconds("max.block.ms"),
        request_bytes_max=request_bytes_max,
        codec=codec,
        level=_level(values, codec),
        round_robin=bool(values["partitioner.class"]),
        ignore_keys=bool(values["partitioner.ignore.keys"]),
        adaptive=bool(values["partitioner.adaptive.partitioning.enable"]),
        transactional_id=transactional_id or None,
        transaction_timeout_ms=number("transaction.timeout.ms"),
        two_phase=bool(values["transaction.two.phase.commit.enable"]),
        metadata_age_s=seconds("metadata.max.age.ms"),
        retry_backoff=Backoff.of(values, "retry"),
        reconnect_backoff=Backoff.of(values, "reconnect"),
    )


def _idempotent(values: Mapping[str, Value], given: Mapping[str, object]) -> bool:
    """Return whether the producer is idempotent, by Kafka's rules.

    Options that rule idempotence out raise ConfigError if it was requested explicitly, and disable it otherwise. Too
    many requests in flight always raise ConfigError.
    """
    transactional = bool(values["transactional.id"])
    if transactional and given.get("enable.idempotence") is not None and not values["enable.idempotence"]:
        raise ConfigError("enable.idempotence=false does not go with transactional.id")
    if not transactional and values["transaction.two.phase.commit.enable"]:
        raise ConfigError("transaction.two.phase.commit.enable needs a transactional.id")
    if transactional and values["transaction.two.phase.commit.enable"] and given.get("transaction.timeout.ms"):
        raise ConfigError(
            "transaction.timeout.ms does not go with transaction.two.phase.commit.enable: there is no timeout then"
        )
    if not values["enable.idempotence"]:
        return False
    is_explicit = transactional or given.get("enable.idempotence") is not None
    in_flight = cast(int, values["max.in.flight.requests.per.connection"])
    if in_flight > IN_FLIGHT_IDEMPOTENT_MAX:
        raise ConfigError(
            f"max.in.flight.requests.per.connection={in_flight} is not allowed: an idempotent producer has at most "
            f"{IN_FLIGHT_IDEMPOTENT_MAX} (or say enable.idempotence=false)"
        )
    for name, wrong in (("acks", ACKS[str(values["acks"])] != -1), ("retries", values["retries"] == 0)):
        if wrong and is_explicit:
            needed = "all" if name == "acks" else "more than 0"
            raise ConfigError(f"{name}={values[name]} is not allowed: idempotence needs {name} to be {needed}")
        if wrong:
            return False
    return True


def _delivery_s(values: Mapping[str, Value], given: Mapping[str, object]) -> float:
    delivery, linger, request = (
        cast(int, values[name]) for name in ("delivery.timeout.ms", "linger.ms", "request.timeout.ms")
    )
    needed = min(linger + request, INT_MAX)
    if delivery < needed:
        if given.get("delivery.timeout.ms") is not None:
            raise ConfigError(
                f"delivery.timeout.ms={delivery} is not allowed: it must be at least linger.ms + request.timeout.ms, {needed}"
            )
        delivery = needed
    return delivery / 1000


def _level(values: Mapping[str, Value], codec: Codec) -> int | None:
    if codec not in LEVELS:
        return None
    level = cast(int, values[f"compression.{codec.name.lower()}.level"])
    return None if codec is Codec.GZIP and level == GZIP_DEFAULT_LEVEL else level
