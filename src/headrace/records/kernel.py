"""The compiled modules if they were built, else their pure-Python fallbacks: same results, far slower."""

from __future__ import annotations

try:
    from headrace.records._columns import encode_columns, partitions_for_keys
    from headrace.records._compaction import OffsetMap
    from headrace.records._decode import decode_columns, reusable, scan_batches
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
    from headrace.records._columns_pure import encode_columns, partitions_for_keys
    from headrace.records._compaction_pure import OffsetMap  # type: ignore[assignment]
    from headrace.records._decode_pure import decode_columns, reusable, scan_batches
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
    "reusable",
    "scan_batches",
    "split_single_produce",
    "validate_records",
]
