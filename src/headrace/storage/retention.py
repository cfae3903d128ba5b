"""Retention: deletes segments below the log start, beyond `retention.bytes` or older than `retention.ms`.

Whole segments are deleted, oldest first, and only below the high watermark. The active segment is rolled first if it is due too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from headrace.base.errors import CorruptData
from headrace.storage.files import is_transient
from headrace.storage.log import Log
from headrace.storage.segments.segment import Segment

SEGMENTS_AT_ONCE = 16  # renaming the files of this many segments takes about a millisecond
DELETE_POLICY = "delete"

ShouldDelete = Callable[[Segment, Segment | None], bool]  # arguments: a segment and the next one


def enforce(log: Log, high_watermark: int, now_ms: int) -> str | None:
    """Delete some segments and return a message with the offsets and the reason; return None if nothing is due.

    Call it until it returns None.
    """
    for reason, should_delete in _rules(log, now_ms):
        count = _oldest(log, high_watermark, should_delete)
        if count == len(log.segments):
            try:
                log.roll(now_ms)
            except OSError as error:
                if not is_transient(error):
                    raise
                count -= 1  # a full disk has no space for a new segment until old ones are removed
        if count:
            first = log.segments.first.base_offset
            log.delete_oldest(count, now_ms)
            return f"{log.topic_partition}: deleted offsets {first} to {log.segments.first.base_offset - 1}: {reason}"
    return None


def _rules(log: Log, now_ms: int) -> list[tuple[str, ShouldDelete]]:
    config = log.config
    rules: list[tuple[str, ShouldDelete]] = [(f"the log starts at {log.log_start}", _is_below(log.log_start))]
    if DELETE_POLICY in config.cleanup_policy:
        if config.retention_bytes >= 0 and log.size >= config.retention_bytes:
            rules.append((f"retention.bytes={config.retention_bytes}", _is_too_much(log.size - config.retention_bytes)))
        if config.retention_ms >= 0:
            rules.append((f"retention.ms={config.retention_ms}", _is_too_old(now_ms - config.retention_ms)))
    return rules


def _oldest(log: Log, high_watermark: int, should_delete: ShouldDelete) -> int:
    count = 0
    for segment in log.segments:
        following = log.segments.following(segment)
        end = log.log_end if following is None else following.base_offset
        is_empty = following is None and segment.size == 0
        if count == SEGMENTS_AT_ONCE or end > high_watermark or is_empty or not should_delete(segment, following):
            break
        count += 1
    return count


def _is_below(log_start: int) -> ShouldDelete:
    return lambda segment, following: following is not None and following.base_offset <= log_start


def _is_too_much(excess: int) -> ShouldDelete:
    left = excess

    def should_delete(segment: Segment, following: Segment | None) -> bool:
        nonlocal left
        left -= segment.size
        return left >= 0

    return should_delete


def _is_too_old(before_ms: int) -> ShouldDelete:
    def should_delete(segment: Segment, following: Segment | None) -> bool:
        with suppress(CorruptData):  # a damaged segment expires too
            segment.verify_max_timestamp()
        newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms()
        return newest < before_ms

    return should_delete
