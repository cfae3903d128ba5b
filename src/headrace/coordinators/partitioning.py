"""Maps group and transactional ids to partitions of internal topics: by Java's string hash, as on every broker."""

from __future__ import annotations

from functools import lru_cache

GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({GROUPS_TOPIC, TRANSACTIONS_TOPIC, SHARE_TOPIC})  # written by coordinators only

HASH_CACHE_SIZE = 4096  # the same groups are looked up repeatedly
CACHED_NAME_LENGTH_MAX = 255
_INT_MIN = -(2**31)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: a signed 32-bit hash over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


_cached_hash = lru_cache(HASH_CACHE_SIZE)(java_hash)


def coordinator_partition(name: str, partitions: int) -> int:
    value = _cached_hash(name) if len(name) <= CACHED_NAME_LENGTH_MAX else java_hash(name)
    return 0 if value == _INT_MIN else abs(value) % partitions
