"""DescribeTransactions 0 and ListTransactions 0–2, which bypass the runtime and read committed state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.patterns import BadPattern, Pattern
from headrace.coordinators.transaction.request import Described, Listed, ListFilters
from headrace.coordinators.transaction.state import Transaction
from headrace.coordinators.transaction.states import BY_TEXT

if TYPE_CHECKING:
    from headrace.coordinators.transaction.shard import TransactionShard


def describe(shard: TransactionShard, transactional_id: str) -> Described:
    """Return the description of a transactional id. Raise KafkaError if it is unknown."""
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    found = shard.tables.all.committed(transactional_id)
    if found is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return Described(
        transactional_id,
        found.state,
        found.timeout_ms,
        found.started_ms,
        found.producer_id,
        found.producer_epoch,
        tuple(sorted(found.partitions)),
    )


def unknown_states(filters: ListFilters) -> list[str]:
    return sorted(filters.states - BY_TEXT.keys())


def list_transactions(shards: Iterable[TransactionShard], filters: ListFilters, now_ms: int) -> list[Listed]:
    """Return the transactional ids that pass the filters. Unknown states match nothing.

    Raise KafkaError (INVALID_REGULAR_EXPRESSION) if the pattern is invalid.
    """
    try:
        pattern = Pattern(filters.pattern) if filters.pattern else None
    except BadPattern as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
    return [
        Listed(name, found.producer_id, found.state)
        for shard in shards
        for name, found in shard.tables.all.committed_items()
        if _passes(found, filters, now_ms) and (pattern is None or pattern.matches(name))
    ]


def _passes(found: Transaction, filters: ListFilters, now_ms: int) -> bool:
    if filters.states and found.state.text not in filters.states:
        return False
    if filters.producer_ids and found.producer_id not in filters.producer_ids:
        return False
    # As in Kafka, an id without a transaction (started_ms is -1) passes every duration.
    return filters.duration_ms < 0 or now_ms - found.started_ms > filters.duration_ms
