"""Settings of group members and their commits, read once from a consumer's option values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.base.errors import ConfigError
from headrace.client.retry import Backoff
from headrace.options.table import Value

CLASSIC, CONSUMER = "classic", "consumer"
# What happens to the membership when a consumer closes (KIP-1092). By default static members stay, to come back.
DEFAULT_OPERATION, LEAVE_GROUP, REMAIN_IN_GROUP = "default", "leave_group", "remain_in_group"


class GroupSettings(NamedTuple):
    group_id: str
    protocol: str
    instance_id: str | None
    rack: str | None
    session_timeout_ms: int
    heartbeat_interval_s: float
    max_poll_interval_ms: int
    strategy: list[str]
    remote_assignor: str | None
    exclude_internal: bool
    create_topics: bool
    metadata_max_age_s: float
    request_timeout_s: float
    backoff: Backoff

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None


def group_settings(values: Mapping[str, Value]) -> GroupSettings:
    group_id = _text(values, "group.id")
    if group_id is None:
        raise ConfigError("group.id must be set: it names the group that reads and commits together")
    strategy = values["partition.assignment.strategy"]
    assert isinstance(strategy, list)
    heartbeat_ms, session_ms = _number(values, "heartbeat.interval.ms"), int(_number(values, "session.timeout.ms"))
    protocol = (_text(values, "group.protocol") or CLASSIC).lower()
    if protocol == CLASSIC and heartbeat_ms >= session_ms:
        raise ConfigError(
            f"heartbeat.interval.ms ({heartbeat_ms:g}) must be lower than session.timeout.ms ({session_ms})"
        )
    return GroupSettings(
        group_id=group_id,
        protocol=protocol,
        instance_id=_text(values, "group.instance.id"),
        rack=_text(values, "client.rack"),
        session_timeout_ms=session_ms,
        heartbeat_interval_s=heartbeat_ms / 1000,
        max_poll_interval_ms=int(_number(values, "max.poll.interval.ms")),
        strategy=strategy,
        remote_assignor=_text(values, "group.remote.assignor"),
        exclude_internal=bool(values["exclude.internal.topics"]),
        create_topics=bool(values["allow.auto.create.topics"]),
        metadata_max_age_s=_number(values, "metadata.max.age.ms") / 1000,
        request_timeout_s=_number(values, "request.timeout.ms") / 1000,
        backoff=Backoff.of(values),
    )


def _text(values: Mapping[str, Value], name: str) -> str | None:
    """Return the option's text, or None if it is empty: an empty rack or instance id means none."""
    value = values[name]
    return str(value) if value else None


def _number(values: Mapping[str, Value], name: str) -> float:
    value = values[name]
    assert isinstance(value, int | float), name
    return value
