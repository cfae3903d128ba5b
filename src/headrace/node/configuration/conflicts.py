"""Combinations of options that are invalid, and combinations that are valid but have surprising effects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from headrace.broker.dynamic_options import cleaner_buffer_problem
from headrace.options.table import Value

# In order of precedence: a name has an effect only if none before it is set.
SYNONYMS = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.dirs", "log.dir"),
)
_RETENTION = SYNONYMS[0]
_AT_MOST = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
)

CLUSTER_OPTIONS = ("controller.quorum.voters", "controller.quorum.bootstrap.servers")  # set where there are other nodes
PROTOCOLS = "group.coordinator.rebalance.protocols"
_CONSUMER_GROUP_OPTIONS = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")


def conflicts(values: Mapping[str, Value], explicit: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a message for each invalid combination, and the names of its options."""
    for name in _RETENTION:
        if values[name] == 0:
            yield f"{name}=0 is not allowed: it must be -1 (for ever) or at least 1", (name,)
    for low, high in (*_AT_MOST, *_bounds(values)):
        if _number(values, low) > _number(values, high):
            yield f"{low}={values[low]} must not be more than {high}={values[high]}", (low, high)
    if not values["group.consumer.assignors"]:
        yield "group.consumer.assignors must name at least one: uniform, range", ("group.consumer.assignors",)
    protocols = values[PROTOCOLS]
    if not isinstance(protocols, list) or "classic" not in protocols:
        yield f"{PROTOCOLS} must have classic: it cannot be disabled", (PROTOCOLS,)
    wrong = cleaner_buffer_problem(values)
    if wrong is not None:
        yield wrong, ("log.cleaner.dedupe.buffer.size", "log.cleaner.threads")
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    if 0 <= _number(values, idle) <= _number(values, delay):
        yield f"{delay}={values[delay]} must be less than {idle}={values[idle]}", (delay, idle)
    both = ("inter.broker.listener.name", "security.inter.broker.protocol")
    if set(both) <= set(explicit):
        yield f"{' and '.join(both)}: only one of them may be set", both


def surprises(values: Mapping[str, Value], explicit: Collection[str]) -> Iterator[str]:
    """Yield a warning for each valid combination that an operator may not expect."""
    for names in SYNONYMS:
        given = [name for name in names if name in explicit]
        for name in given[1:]:
            yield f"{name} has no effect, because {given[0]} is set too"
    if not any(values[name] for name in CLUSTER_OPTIONS):
        for name in ("default.replication.factor", "min.insync.replicas"):
            if _number(values, name) > 1:
                yield f"{name}={values[name]}: without other brokers, no topic has a second replica"
    protocols = values[PROTOCOLS]
    if isinstance(protocols, list) and "consumer" not in protocols:
        yield f"{PROTOCOLS} has no consumer: members with group.protocol=consumer are refused"
    beat, session = "broker.heartbeat.interval.ms", "broker.session.timeout.ms"
    if _number(values, beat) * 2 > _number(values, session):
        yield f"{beat}={values[beat]}: a broker that misses one heartbeat is fenced by {session}={values[session]}"


def _bounds(values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """Yield pairs of group options of which the first must not exceed the second: minimum, default and maximum."""
    for name in values:
        if name.startswith("group.") and ".min." in name and (most := name.replace(".min.", ".max.")) in values:
            yield name, most
    for name in _CONSUMER_GROUP_OPTIONS:
        yield f"group.consumer.min.{name}", f"group.consumer.{name}"
        yield f"group.consumer.{name}", f"group.consumer.max.{name}"
    yield "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"


def _number(values: Mapping[str, Value], name: str) -> float:
    value = values[name]
    return value if isinstance(value, int | float) else float("nan")
