"""Settings of a transaction coordinator, from the node's options; Kafka's names with underscores."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headrace.options.table import Value


class TransactionSettings(Struct, frozen=True):
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_two_phase_commit_enable: bool = False


def transaction_settings(values: Mapping[str, Value]) -> TransactionSettings:
    chosen = {field: values[field.replace("_", ".")] for field in TransactionSettings.__struct_fields__}
    return TransactionSettings(**chosen)  # type: ignore[arg-type]
