"""Which partition of an internal topic keeps a group or a transactional id: Java's hash of the name, as every broker computes it."""

from __future__ import annotations

GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

_INT_MIN = -(2**31)


def java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, in 32 bits with a sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def coordinator_partition(name: str, partitions: int) -> int:
    value = java_hash(name)
    return 0 if value == _INT_MIN else abs(value) % partitions
