"""Logs older than record batches: segments of magic 0 and 1 before current ones."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from tests.storage.storage_samples import NOW_MS, PARTITION, append, make_batch, open_log, segment_files

from headrace.records.compression import Codec, compress
from headrace.records.legacy import decode_any_records, read_any_header
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig

CONFIG = LogConfig(index_interval_bytes=100, producer_id_expiration_ms=10**15)
MAGIC_0, MAGIC_1 = 0, 1


def message(magic: int, offset: int, value: bytes, *, timestamp: int = -1, codec: Codec = Codec.NONE) -> bytes:
    body = struct.pack(">bb", magic, codec)
    if magic == MAGIC_1:
        body += struct.pack(">q", timestamp)
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(first: int, timestamps: list[int], codec: Codec = Codec.SNAPPY) -> bytes:
    """Return a wrapper as a broker stored it: relative offsets inside, the last offset and largest time outside."""
    inner = b"".join(
        message(MAGIC_1, number, b"w%d" % number, timestamp=time) for number, time in enumerate(timestamps)
    )
    last = first + len(timestamps) - 1
    return message(MAGIC_1, last, compress(codec, inner), timestamp=max(timestamps), codec=codec)


def write_legacy_log(path: Path) -> list[bytes]:
    """Write offsets 0 to 9 in magic 0 and 10 to 39 in magic 1: ten single messages, then four wrappers of five."""
    directory = path / str(PARTITION)
    directory.mkdir()
    oldest = [message(MAGIC_0, offset, b"v%d" % offset) for offset in range(10)]
    old = [message(MAGIC_1, offset, b"v%d" % offset, timestamp=NOW_MS + offset) for offset in range(10, 20)]
    wrapped = [wrapper(first, [NOW_MS + first + n for n in range(5)]) for first in range(20, 40, 5)]
    (directory / f"{0:020d}.log").write_bytes(b"".join(oldest))
    (directory / f"{10:020d}.log").write_bytes(b"".join(old + wrapped))
    return oldest + old + wrapped


def stored(log: Log) -> list[bytes]:
    found: list[bytes] = []
    offset = log.log_start
    while offset < log.log_end:
        data = log.read(offset, 1).range.read()
        found.append(data)
        offset = read_any_header(data).next_offset
    return found


@pytest.mark.parametrize("clean", [True, False])
def test_legacy_segments_are_opened_and_read_unchanged(tmp_path: Path, clean: bool) -> None:
    expected = write_legacy_log(tmp_path)
    log, report = open_log(tmp_path, CONFIG, clean=clean)
    assert (log.log_end, report.cuts, report.damage) == (40, [], [])
    assert stored(log) == expected
    assert log.epochs.entries() == []  # legacy messages have no epochs
    # A read from the middle of a wrapper begins with the wrapper; its records have their own offsets.
    data = log.read(27, 1).range.read()
    assert [record.offset for record in decode_any_records(data)] == [25, 26, 27, 28, 29]
    batch = make_batch(2)
    assert append(log, batch, 3).first_offset == 40
    assert stored(log) == [*expected, bytes(batch)]
    assert log.epochs.entries() == [(3, 40)]
    log.close()
    log, report = open_log(tmp_path, CONFIG, recovery_point=42, clean=True)
    assert report.messages() == [] and stored(log) == [*expected, bytes(batch)]


def test_timestamp_lookups_find_records_inside_wrappers(tmp_path: Path) -> None:
    write_legacy_log(tmp_path)
    log, _ = open_log(tmp_path, CONFIG)
    assert log.find_by_timestamp(NOW_MS + 10) == (10, NOW_MS + 10, -1)  # magic 0 has no times
    assert log.find_by_timestamp(NOW_MS + 33) == (33, NOW_MS + 33, -1)
    assert log.find_by_timestamp(NOW_MS + 40) is None
    assert log.max_timestamp_offset() == (39, NOW_MS + 39, -1)


def test_indexes_of_legacy_segments_are_rebuilt(tmp_path: Path) -> None:
    expected = write_legacy_log(tmp_path)
    log, _ = open_log(tmp_path, CONFIG)
    log.close()
    for suffix in (".index", ".timeindex"):
        for path in segment_files(tmp_path, suffix):
            path.unlink()
    log, report = open_log(tmp_path, CONFIG, recovery_point=40, clean=True)
    assert report.damage == [] and stored(log) == expected
    assert log.find_by_timestamp(NOW_MS + 33) == (33, NOW_MS + 33, -1)
    assert log.truncate_to(33, NOW_MS) == 30  # the wrapper is removed as a whole
    assert stored(log) == expected[:22]


@pytest.mark.parametrize("lost", [1, 30, 60])
def test_recovery_truncates_a_torn_legacy_message(tmp_path: Path, lost: int) -> None:
    expected = write_legacy_log(tmp_path)
    path = segment_files(tmp_path, ".log")[-1]
    path.write_bytes(path.read_bytes()[:-lost])
    log, report = open_log(tmp_path, CONFIG)
    assert stored(log) == expected[:-1] and log.log_end == 35
    assert len(report.cuts) == 1


def test_recovery_finds_a_flipped_bit_in_a_legacy_message(tmp_path: Path) -> None:
    write_legacy_log(tmp_path)
    path = segment_files(tmp_path, ".log")[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    log, report = open_log(tmp_path, CONFIG)
    assert log.log_end == 9 and "checksum" in report.cuts[0].reason
