"""The offset map and the filtering of batches: compiled and pure code agree, and the map behaves like a dict."""

from __future__ import annotations

from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.compiled import compiled as compiled_module

from headrace.records import _compaction_pure as pure
from headrace.records.builder import build_batch
from headrace.records.compression import Codec
from headrace.records.kernel_types import FULL, MALFORMED, OK
from headrace.records.record import Record

compiled = compiled_module("_compaction")

SECRET = bytes(range(16))
NOW = 1_700_000_000_000
WORDS = Struct("<QQ")

keys = st.one_of(st.none(), st.integers(0, 12).map(lambda number: b"key-%d" % number), st.binary(max_size=20))
values = st.one_of(st.none(), st.binary(max_size=30))
records = st.builds(
    Record,
    st.just(0),
    st.integers(NOW - 10_000, NOW + 10_000),
    keys,
    values,
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draw a log of consecutive batches, most of them plain."""
    out = bytearray()
    offset = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 6))):
        content = draw(st.lists(records, min_size=1, max_size=6))
        options: dict[str, Any] = {}
        if draw(st.booleans()):
            options = {"producer_id": draw(st.integers(0, 3)), "producer_epoch": 0, "base_sequence": 0}
        if draw(st.integers(0, 5)) == 0:
            options["codec"] = draw(st.sampled_from(list(Codec)))
        if draw(st.integers(0, 7)) == 0:
            options["append_time"] = NOW
        if draw(st.integers(0, 9)) == 0:
            options |= {"transactional": True, "producer_id": 9, "producer_epoch": 0}
        out += build_batch(content, base_offset=offset, **options)
        offset += len(content) + draw(st.integers(0, 3))
    return bytes(out)


def test_the_key_hash_matches_the_siphash_test_vectors() -> None:
    """Compare with the authors' test vectors: key 00 to 0f, messages 00 01 02 and so on."""
    vectors = {
        0: "a3817f04ba25a8e66df67214c7550293",
        1: "da87c1d86b99af44347659119b22fc45",
        8: "3b62a9ba6258f5610f83e264f31497b4",
        63: "5150d1772f50834a503e069a973fbd7c",
    }
    for length, expected in vectors.items():
        assert WORDS.pack(*pure.hash_key(bytes(range(length)), *WORDS.unpack(SECRET))).hex() == expected


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**62)), max_size=80), st.integers(1, 40))
@settings(deadline=None, max_examples=200)
def test_the_offset_map_behaves_like_a_bounded_dict(pairs: list[tuple[bytes, int]], entries_max: int) -> None:
    tested_maps = [
        made(entries_max + 1 + entries_max // 8, entries_max, SECRET) for made in (compiled.OffsetMap, pure.OffsetMap)
    ]
    expected: dict[bytes, int] = {}
    for key, offset in pairs:
        fits = key in expected or len(expected) < entries_max
        if fits:
            expected[key] = offset
        assert [tested_map.put(key, offset) for tested_map in tested_maps] == [fits, fits]
    for tested_map in tested_maps:
        assert tested_map.entries == len(expected)
        assert {key: tested_map.get(key) for key in expected} == expected
        assert tested_map.get(b"nobody's key, longer than all") == -1


def test_a_full_offset_map_still_finds_and_updates_its_keys() -> None:
    made = compiled.OffsetMap(1001, 1000, SECRET)
    for number in range(1000):
        assert made.put(b"%d" % number, number)
    assert not made.put(b"one more", 5) and made.put(b"7", 7000)
    assert [made.get(b"%d" % number) for number in range(1000)] == [*range(7), 7000, *range(8, 1000)]


def test_an_offset_map_needs_an_empty_slot_and_a_full_length_secret() -> None:
    for made in (compiled.OffsetMap, pure.OffsetMap):
        for arguments in ((1, 1, SECRET), (5, 0, SECRET), (5, 3, b"short")):
            with pytest.raises(ValueError, match="needs an empty slot"):
                made(*arguments)


def outcome(made: Any, log: bytes, start: int, entries_max: int, keep_end: int, run_bytes: int) -> list[Any]:
    """Return all results of the plain functions for a log; batches that they do not handle are skipped by length."""
    offset_map = made(entries_max + 2, entries_max, SECRET)
    results: list[Any] = []
    position = 0
    while position < len(log):
        position, count, status = offset_map.note_plain(log, position, start)
        results.append((position, count, status, offset_map.latest, offset_map.entries))
        if status in (FULL, MALFORMED, OK):
            break
        position += 12 + int.from_bytes(log[position + 8 : position + 12], "big")
    position = 0
    while position < len(log):
        position, status, runs, rebuilt, count = offset_map.sift_plain(log, position, run_bytes, keep_end)
        used = max((run[2] for run in runs if run[0] == 1), default=0)
        results.append((position, status, runs, bytes(rebuilt[:used]), count))
        if status in (MALFORMED, OK):
            break
        position += 12 + int.from_bytes(log[position + 8 : position + 12], "big")
    return results


@given(logs(), st.integers(0, 60), st.integers(1, 30), st.integers(0, 80), st.sampled_from([0, 100, 4096]))
@settings(deadline=None, max_examples=150)
def test_compiled_and_fallback_offset_maps_filter_plain_batches_alike(
    log: bytes, start: int, entries_max: int, end: int, run_bytes: int
) -> None:
    assert outcome(compiled.OffsetMap, log, start, entries_max, end, run_bytes) == outcome(
        pure.OffsetMap, log, start, entries_max, end, run_bytes
    )


@given(logs(), st.data())
@settings(deadline=None, max_examples=150)
def test_compiled_and_fallback_offset_maps_handle_damaged_batches_alike(log: bytes, data: st.DataObject) -> None:
    damaged = bytearray(log)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(12, len(log) - 1))  # the first length stays: the rest depends on it
        damaged[at] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(1, len(log)))])
    assert outcome(compiled.OffsetMap, cut, 0, 20, -1, 100) == outcome(pure.OffsetMap, cut, 0, 20, -1, 100)


@given(
    st.lists(records, min_size=1, max_size=8),
    st.lists(st.tuples(keys.filter(lambda key: key is not None), st.integers(0, 12)), max_size=6),
    st.sampled_from([NOW, NOW + 86_400_000, 0, 2**62]),
    st.booleans(),
    st.booleans(),
    st.integers(-1, 12),
)
@settings(deadline=None, max_examples=150)
def test_compiled_and_fallback_offset_maps_filter_sections_alike(
    content: list[Record], noted: list[tuple[bytes, int]], base: int, drop: bool, keep_all: bool, latest: int
) -> None:
    section = build_batch([Record(0, NOW, b"", b""), *content])[61:]
    results: list[tuple[int, int, int, int, bytearray | None]] = []
    for made in (compiled.OffsetMap, pure.OffsetMap):
        offset_map = made(40, 30, SECRET)
        for key, offset in noted:
            offset_map.put(key, offset)
        offset_map.latest = latest
        results.append(offset_map.sift_records(section, len(content) + 1, 0, len(content), NOW, base, drop, keep_all))
        short = offset_map.sift_records(section[:-1], len(content) + 1, 0, len(content), NOW, base, drop, keep_all)
        assert short[0] == MALFORMED and short[4] is None
    assert results[0] == results[1] and results[0][0] == OK
    if keep_all:
        assert results[0][1] == len(content) + 1 and (results[0][4] is None) == (base == NOW)
