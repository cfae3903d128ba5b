"""The topic options that apply to a log, with Kafka's names and defaults."""

from __future__ import annotations

import msgspec

LONG_MAX = 2**63 - 1
DAY_MS = 86_400_000
COMPACT_POLICY = "compact"


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS
    producer_id_expiration_ms: int = DAY_MS  # a broker option, not a topic option

    @property
    def is_compacted(self) -> bool:
        return COMPACT_POLICY in self.cleanup_policy
