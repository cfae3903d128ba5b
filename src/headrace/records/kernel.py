"""The compiled modules if they were built, else their twins: the same functions with the same results, far slower."""

from __future__ import annotations

try:
    from headrace.records._columns import decode_columns, encode_columns, partitions_for_keys
    from headrace.records._compaction import OffsetMap
    from headrace.records._kernel import (
        allocate,
        inspect_plain_batch,
        murmur2,
        partition_for_key,
        split_single_produce,
        validate_records,
    )

    COMPILED = True
except ImportError:
    from headrace.records._columns_pure import decode_columns, encode_columns, partitions_for_keys
    from headrace.records._compaction_pure import OffsetMap  # type: ignore[assignment]
    from headrace.records._kernel_pure import (
        allocate,
        inspect_plain_batch,
        murmur2,
        partition_for_key,
        split_single_produce,
        validate_records,
    )

    COMPILED = False

__all__ = [
    "COMPILED",
    "OffsetMap",
    "allocate",
    "decode_columns",
    "encode_columns",
    "inspect_plain_batch",
    "murmur2",
    "partition_for_key",
    "partitions_for_keys",
    "split_single_produce",
    "validate_records",
]
