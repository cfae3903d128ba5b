"""The sparse indexes compared with lists, in memory and sealed, and invalid index files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.storage.disk import DiskFiles
from headrace.storage.indexes.aborted_index import AbortedIndex, AbortedTransaction
from headrace.storage.indexes.offset_index import OffsetIndex
from headrace.storage.indexes.sparse_index import CorruptIndex
from headrace.storage.indexes.time_index import TimeIndex

BASE = 5_000_000_000
entries_strategy = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=600)


def offset_index(path: Path | str, size_max: int = 1 << 20) -> OffsetIndex:
    return OffsetIndex(DiskFiles(), f"{path}/i.index", BASE, size_max)


def time_index(path: Path | str) -> TimeIndex:
    return TimeIndex(DiskFiles(), f"{path}/i.timeindex", BASE, 1 << 20)


@given(entries_strategy, st.lists(st.integers(-5, 600_000), max_size=20), st.integers(0, 600_000))
@settings(deadline=None, max_examples=40)
def test_offset_index_lookups_match_a_list(steps: list[tuple[int, int]], targets: list[int], cut: int) -> None:
    with TemporaryDirectory() as path:
        index = offset_index(path)
        model: list[tuple[int, int]] = []
        offset = position = 0
        for number, (offset_step, position_step) in enumerate(steps):
            offset, position = offset + offset_step, position + position_step
            index.append(BASE + offset, position)
            model.append((BASE + offset, position))
            if number % 7 == 0:
                index.write_pending()

        def assert_matches_model(subject: OffsetIndex) -> None:
            assert len(subject) == len(model)
            assert subject.last() == (model[-1] if model else (BASE, 0))
            for target in targets:
                below = [entry for entry in model if entry[0] <= BASE + target]
                assert subject.lookup(BASE + target) == (below[-1] if below else (BASE, 0))

        assert_matches_model(index)
        index.seal()
        assert_matches_model(index)
        reopened = offset_index(path)
        reopened.check_sealed()
        assert_matches_model(reopened)
        model = [entry for entry in model if entry[0] < BASE + cut]
        reopened.truncate_to(BASE + cut)
        assert_matches_model(reopened)
        reopened.write_pending()
        again = offset_index(path)
        again.load()
        assert_matches_model(again)


@given(entries_strategy, st.lists(st.integers(-5, 600_000), max_size=20), st.integers(0, 600_000))
@settings(deadline=None, max_examples=40)
def test_time_index_lookups_match_a_list(steps: list[tuple[int, int]], targets: list[int], cut: int) -> None:
    with TemporaryDirectory() as path:
        index = time_index(path)
        model: list[tuple[int, int]] = []
        timestamp = offset = 0
        for timestamp_step, offset_step in steps:
            timestamp, offset = timestamp + timestamp_step - 300, offset + offset_step
            index.append_if_later(timestamp, BASE + offset)
            if timestamp > (model[-1][0] if model else -1):
                model.append((timestamp, BASE + offset))
        index.seal()
        for target in targets:
            below = [entry for entry in model if entry[0] <= target]
            assert index.lookup(target) == (below[-1] if below else (-1, BASE))
        index.truncate_to(BASE + cut)
        kept = [entry for entry in model if entry[1] < BASE + cut]
        assert index.last() == (kept[-1] if kept else (-1, BASE))


def test_a_preallocated_index_file_is_truncated_to_its_entries(tmp_path: Path) -> None:
    index = offset_index(tmp_path)
    index.append(BASE + 10, 4096)
    index.append(BASE + 20, 0x10000)  # an entry that ends in zero bytes itself
    index.write_pending()
    path = tmp_path / "i.index"
    path.write_bytes(path.read_bytes() + bytes(8000))
    index = offset_index(tmp_path)
    index.load()
    assert index.last() == (BASE + 20, 0x10000)
    assert path.stat().st_size == 16


@pytest.mark.parametrize(
    "data",
    [
        b"1234567",
        bytes.fromhex("0000000a000010000000000a00002000"),  # the same offset twice
        bytes.fromhex("0000000a000010000000000b00000800"),  # a position that goes back
        bytes.fromhex("8000000a00001000"),  # a negative offset
    ],
)
def test_a_corrupt_offset_index_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "i.index").write_bytes(data)
    with pytest.raises(CorruptIndex):
        offset_index(tmp_path).load()
    with pytest.raises(CorruptIndex):
        offset_index(tmp_path).check_sealed()


def test_opening_a_missing_index_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        offset_index(tmp_path).load()
    with pytest.raises(FileNotFoundError):
        time_index(tmp_path).check_sealed()


@given(st.binary(max_size=100))
@settings(deadline=None, max_examples=100)
def test_garbage_index_files_load_or_raise_a_corruption_error(data: bytes) -> None:
    with TemporaryDirectory() as path:
        for make in (offset_index, time_index):
            subject = make(path)
            Path(subject.path).write_bytes(data)
            for open_index in (subject.load, make(path).check_sealed):
                with contextlib.suppress(CorruptIndex):
                    open_index()
        aborted = AbortedIndex(DiskFiles(), f"{path}/i.txnindex")
        Path(aborted.path).write_bytes(data)
        with contextlib.suppress(CorruptData):
            aborted.entries()


def test_the_time_index_is_full_one_entry_early_but_the_offset_index_is_not(tmp_path: Path) -> None:
    offsets = offset_index(tmp_path, 16)
    times = TimeIndex(DiskFiles(), str(tmp_path / "t"), BASE, 24)
    for number in range(1, 3):
        assert not offsets.is_full
        offsets.append(BASE + number, number)
    assert offsets.is_full
    assert not times.is_full
    times.append_if_later(1, BASE)
    assert times.is_full


def test_aborted_transactions_are_collected_by_overlap(tmp_path: Path) -> None:
    index = AbortedIndex(DiskFiles(), str(tmp_path / "i.txnindex"))
    assert index.entries() == [] and not (tmp_path / "i.txnindex").exists()
    first, second = AbortedTransaction(1, 0, 10, 5), AbortedTransaction(2, 5, 20, 30)
    index.append(first)
    index.append(second)
    assert index.collect(0, 5) == ([first], True)
    assert index.collect(0, 6) == ([first, second], True)
    assert index.collect(11, 40) == ([second], False)
    index.close()
    index = AbortedIndex(DiskFiles(), str(tmp_path / "i.txnindex"))
    assert index.entries() == [first, second]
    index.truncate_to(20)
    assert (tmp_path / "i.txnindex").stat().st_size == 34
    assert AbortedIndex(DiskFiles(), str(tmp_path / "i.txnindex")).entries() == [first]
