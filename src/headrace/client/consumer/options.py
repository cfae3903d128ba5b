"""Consumer options with Kafka's names and defaults, and the settings derived from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, cast

from headrace.base.errors import ConfigError
from headrace.client.consumer.fetching import READ_COMMITTED, READ_UNCOMMITTED, FetchSettings
from headrace.client.consumer.list_offsets import EARLIEST, LATEST
from headrace.client.retry import Backoff
from headrace.client.wire.options import CONNECTION_OPTIONS
from headrace.options.table import Kind, Option, OptionTable, Value, unused

ISOLATION = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
BY_DURATION = "by_duration:"
PROTOCOLS = ("classic", "consumer", "CLASSIC", "CONSUMER")
_CLASSIC_ONLY = ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms")
_CONSUMER_ONLY = ("group.remote.assignor",)
_DURATION = re.compile(r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?\Z")
_ASSIGNORS = ["org.apache.kafka.clients.consumer.RangeAssignor"]
_COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"

CONSUMER_OPTIONS = OptionTable(
    *CONNECTION_OPTIONS,
    Option("client.id", Kind.STRING, "headrace-consumer", "the name that brokers log"),
    Option("client.rack", Kind.STRING, "", "rack of this client, for assignors; records are always read from leaders"),
    Option("auto.offset.reset", Kind.STRING, "latest", "earliest, latest, none or by_duration:PnDTnHnMnS"),
    Option("isolation.level", Kind.STRING, "read_uncommitted", "which records are read", one_of=tuple(ISOLATION)),
    Option("max.poll.records", Kind.INT, 500, "largest number of records of one poll", at_least=1),
    Option("fetch.min.bytes", Kind.INT, 1, "bytes a broker waits for before it responds to a fetch", at_least=0),
    Option("fetch.max.wait.ms", Kind.INT, 500, "longest time a broker waits for them", at_least=0),
    Option("fetch.max.bytes", Kind.INT, 50 << 20, "largest number of bytes of one fetch from one broker", at_least=0),
    Option(
        "max.partition.fetch.bytes",
        Kind.INT,
        1 << 20,
        "largest number of bytes of one partition in a fetch",
        at_least=0,
    ),
    Option("check.crcs", Kind.BOOLEAN, True, "whether checksums of batches are verified"),
    Option("enable.auto.commit", Kind.BOOLEAN, True, "whether poll commits what previous polls returned"),
    Option("auto.commit.interval.ms", Kind.INT, 5000, "time between automatic commits", at_least=0),
    Option("default.api.timeout.ms", Kind.INT, 60_000, "time limit of a call without a timeout", at_least=0),
    Option("metadata.max.age.ms", Kind.LONG, 300_000, "maximum age of cached metadata", at_least=0),
    Option("retry.backoff.ms", Kind.LONG, 100, "pause before the first retry; it doubles with each one", at_least=0),
    Option("retry.backoff.max.ms", Kind.LONG, 1000, "longest pause", at_least=0),
    Option(
        "allow.auto.create.topics", Kind.BOOLEAN, True, "whether requesting metadata of a missing topic may create it"
    ),
    Option("exclude.internal.topics", Kind.BOOLEAN, True, "whether patterns ignore internal topics"),
    Option("group.id", Kind.STRING, None, "the group that reads and commits together"),
    Option("group.protocol", Kind.STRING, "classic", "classic, or consumer (KIP-848)", one_of=PROTOCOLS),
    Option(
        "group.instance.id", Kind.STRING, None, "name of a static member, which keeps its partitions over a restart"
    ),
    Option("group.remote.assignor", Kind.STRING, None, "the coordinator's assignor; only for group.protocol=consumer"),
    Option("partition.assignment.strategy", Kind.LIST, [*_ASSIGNORS, _COOPERATIVE], "only for group.protocol=classic"),
    Option(
        "session.timeout.ms",
        Kind.INT,
        45_000,
        "time without a heartbeat after which a member is removed from its group",
        at_least=1,
    ),
    Option("heartbeat.interval.ms", Kind.INT, 3000, "time between heartbeats of a member", at_least=1),
    Option(
        "max.poll.interval.ms",
        Kind.INT,
        300_000,
        "time without a poll after which a member leaves its group",
        at_least=1,
    ),
    *unused(
        "keys and values are bytes here",
        Option("key.deserializer", Kind.CLASS, None, "only in a JVM"),
        Option("value.deserializer", Kind.CLASS, None, "only in a JVM"),
        Option("interceptor.classes", Kind.LIST, [], "only in a JVM"),
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
        Option("reconnect.backoff.ms", Kind.LONG, 50, "connect backoff", at_least=0),
        Option("reconnect.backoff.max.ms", Kind.LONG, 1000, "ceiling", at_least=0),
        Option("send.buffer.bytes", Kind.INT, 131_072, "of a socket", at_least=-1),
        Option("receive.buffer.bytes", Kind.INT, 65_536, "of a socket", at_least=-1),
        Option("enable.metrics.push", Kind.BOOLEAN, True, "KIP-714"),
    ),
)


class ResetPolicy(NamedTuple):
    """Where to start reading a partition without a committed offset.

    `time` is the timestamp for ListOffsets, `before_now_ms` a duration to subtract from now; if both are None, a
    missing offset is an error.
    """

    text: str
    time: int | None = None
    before_now_ms: int | None = None

    def timestamp(self, now_ms: int) -> int | None:
        return self.time if self.before_now_ms is None else max(0, now_ms - self.before_now_ms)


class ConsumerSettings(NamedTuple):
    """Settings of a consumer; times are in seconds."""

    fetch: FetchSettings
    reset: ResetPolicy
    poll_records_max: int
    check_crcs: bool
    auto_commit_s: float | None  # None: no automatic commits
    api_timeout_s: float
    backoff: Backoff
    create_topics: bool
    group_id: str | None


def consumer_settings(values: Mapping[str, Value], given: Mapping[str, object]) -> ConsumerSettings:
    """Derive the settings from `values` (by CONSUMER_OPTIONS). Raise ConfigError if options contradict each other.

    `given` holds the options that were set explicitly.
    """

    def number(name: str) -> int:
        return cast(int, values[name])

    group_id = cast(str | None, values["group.id"])
    auto_commit = bool(values["enable.auto.commit"])
    if group_id is None and auto_commit and given.get("enable.auto.commit") is not None:
        raise ConfigError("enable.auto.commit=true is not allowed without group.id: offsets are committed for a group")
    protocol = str(values["group.protocol"]).lower()
    for name in _CONSUMER_ONLY if protocol == "classic" else _CLASSIC_ONLY:
        if given.get(name) is not None:
            raise ConfigError(f"{name} is not allowed with group.protocol={protocol}: the other protocol has it")
    return ConsumerSettings(
        fetch=FetchSettings(
            max_wait_ms=number("fetch.max.wait.ms"),
            min_bytes=number("fetch.min.bytes"),
            max_bytes=number("fetch.max.bytes"),
            partition_max_bytes=number("max.partition.fetch.bytes"),
            isolation=ISOLATION[str(values["isolation.level"])],
        ),
        reset=reset_policy(str(values["auto.offset.reset"])),
        poll_records_max=number("max.poll.records"),
        check_crcs=bool(values["check.crcs"]),
        auto_commit_s=number("auto.commit.interval.ms") / 1000 if auto_commit and group_id is not None else None,
        api_timeout_s=number("default.api.timeout.ms") / 1000,
        backoff=Backoff.of(values),
        create_topics=bool(values["allow.auto.create.topics"]),
        group_id=group_id,
    )


def reset_policy(text: str) -> ResetPolicy:
    lowered = text.lower()
    if lowered in ("earliest", "latest"):
        return ResetPolicy(lowered, EARLIEST if lowered == "earliest" else LATEST)
    if lowered == "none":
        return ResetPolicy(lowered)
    if lowered.startswith(BY_DURATION):
        try:
            return ResetPolicy(text, before_now_ms=duration_ms(text[len(BY_DURATION) :]))
        except ValueError:
            pass
    raise ConfigError(
        f"auto.offset.reset={text!r} is not allowed: it must be earliest, latest, none or by_duration:PnDTnHnMnS, "
        "as by_duration:P1DT6H or by_duration:PT30M"
    )


def duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration of the form PnDTnHnMnS. Raise ValueError if it is malformed."""
    match = _DURATION.match(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no duration such as P1DT6H or PT30M")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
