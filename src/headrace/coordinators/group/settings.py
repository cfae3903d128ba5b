"""Settings of a group coordinator, from the node's options; Kafka's names with underscores."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headrace.options.table import Value


class GroupSettings(Struct, frozen=True):
    group_initial_rebalance_delay_ms: int = 3000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_max_size: int = 2_147_483_647
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_assignment_interval_ms: int = 1000
    group_consumer_regex_refresh_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000


def group_settings(values: Mapping[str, Value]) -> GroupSettings:
    chosen = {}
    for field in GroupSettings.__struct_fields__:
        value = values[field.replace("_", ".")]
        chosen[field] = tuple(value) if isinstance(value, list) else value
    return GroupSettings(**chosen)  # type: ignore[arg-type]
