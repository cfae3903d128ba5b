"""The real disk: all-or-nothing appends, bounded descriptors, locks."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import TopicPartition
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.storage import disk
from headrace.storage.disk import DiskFiles
from headrace.storage.files import ShortWrite, read_all, write_atomically
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Make the kernel cut writes short at that file size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_files_can_be_appended_read_and_truncated(tmp_path: Path) -> None:
    files = DiskFiles()
    path = str(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.open(path)
    file = files.open(path, create=True)
    assert file.append(b"hello ") == 0
    assert file.append(memoryview(b"world")) == 6
    assert (file.size(), file.read(3, 5), file.read(9, 100), file.read(50, 1)) == (11, b"lo wo", b"ld", b"")
    file.truncate(5)
    assert file.append(b"!") == 5
    file.sync()
    file.close()
    assert files.open(path).read(0, 100) == b"hello!"


@pytest.mark.parametrize("limit, error", [(1000, ShortWrite), (500, OSError)])
def test_a_failed_append_leaves_no_partial_data(tmp_path: Path, limit: int, error: type[OSError]) -> None:
    file = DiskFiles().open(str(tmp_path / "a"), create=True)
    file.append(b"a" * 500)
    with file_size_limit(limit), pytest.raises(error):
        file.append(b"b" * 501)
    assert file.size() == os.path.getsize(file.path) == 500
    assert file.append(b"c") == 500
    assert file.read(499, 10) == b"ac"


@pytest.mark.parametrize("size", [10, 5000, disk.EXACT_PROBE_BYTES, 300_000])
def test_cached_reads_return_the_same_bytes_as_reads_or_none(tmp_path: Path, size: int) -> None:
    file = DiskFiles().open(str(tmp_path / "a"), create=True)
    data = os.urandom(size)
    file.append(data)
    for position, length in [(0, size), (3, size), (size - 1, 1), (size, 5)]:
        assert file.read_cached(position, length) in (None, data[position : position + length])
        assert file.read(position, length) == data[position : position + length]


def test_open_descriptors_are_limited_and_evicted_files_are_reopened(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=4)
    opened = [files.open(str(tmp_path / str(number)), create=True) for number in range(20)]
    for turn in range(3):
        for number, file in enumerate(opened):
            file.append(f"{turn}:{number} ".encode())
            assert files.open_descriptors() <= 4
    for number, file in enumerate(opened):
        assert file.read(0, 100) == f"0:{number} 1:{number} 2:{number} ".encode()
    for file in opened:
        file.close()
    assert files.open_descriptors() == 0
    with pytest.raises(ValueError, match="closed"):
        opened[0].sync()


def test_concurrent_readers_never_read_through_another_files_descriptor(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=2)
    opened = [files.open(str(tmp_path / str(number)), create=True) for number in range(8)]
    for number, file in enumerate(opened):
        file.append(bytes([number]) * 100)
    wrong: list[int] = []

    def read_all_files() -> None:
        for _ in range(200):
            for number, file in enumerate(opened):
                if file.read(0, 100) != bytes([number]) * 100:
                    wrong.append(number)

    threads = [threading.Thread(target=read_all_files) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    with DiskFiles().lock(path), pytest.raises(BlockingIOError), DiskFiles().lock(path):
        pass
    with DiskFiles().lock(path):
        pass


def test_small_files_are_replaced_atomically_and_read_with_a_size_limit(tmp_path: Path) -> None:
    files = DiskFiles()
    path = str(tmp_path / "checkpoint")
    write_atomically(files, path, b"first, and longer")
    write_atomically(files, path, b"second")
    assert read_all(files, path, 6) == b"second"
    with pytest.raises(OSError, match="more than the 5 allowed"):
        read_all(files, path, 5)
    assert files.list_dir(str(tmp_path)) == ["checkpoint"]


def test_directories_are_created_renamed_and_removed(tmp_path: Path) -> None:
    files = DiskFiles()
    files.make_dirs(str(tmp_path / "b" / "c"))
    files.open(str(tmp_path / "b" / "c" / "x"), create=True).close()
    files.rename(str(tmp_path / "b"), str(tmp_path / "a"))
    files.sync_dir(str(tmp_path))
    assert files.exists(str(tmp_path / "a" / "c" / "x"))
    files.remove(str(tmp_path / "a"))
    files.remove(str(tmp_path / "a"))
    assert files.list_dir(str(tmp_path)) == []


def test_a_file_stays_usable_after_it_is_moved(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=1)
    file = files.open(str(tmp_path / "a"), create=True)
    file.append(b"first")
    file.move(str(tmp_path / "b"))
    assert file.path == str(tmp_path / "b") and os.listdir(tmp_path) == ["b"]
    for number in range(3):  # evicts the file's descriptor
        files.open(str(tmp_path / f"other-{number}"), create=True)
    assert file.append(b" second") == 5
    assert file.read(0, 20) == b"first second"
    assert files.modified_ms(file.path) == os.stat(file.path).st_mtime_ns // 1_000_000
    files.set_modified_ms(file.path, 1_234_567)
    assert files.modified_ms(file.path) == 1_234_567
    file.close()


def test_many_logs_share_a_limited_number_of_descriptors(tmp_path: Path) -> None:
    """Use three files per segment and two segments per log, with two hundred descriptors for all of them."""
    bound, count = 200, 1500
    files = DiskFiles(open_files_max=bound)
    logs: list[Log] = []
    for number in range(count):
        name = TopicPartition("t", number)
        log, _ = Log.open(files, str(tmp_path / str(name)), name, LogConfig(), now_ms=1)
        batch = build_batch([Record(0, 5, None, b"%d" % number)])
        log.append_as_leader(batch, read_header(batch), 0, 1)
        log.roll(1)
        logs.append(log)
        assert files.open_descriptors() <= bound
    assert _descriptors_below(tmp_path) <= bound
    for number, log in enumerate(logs):
        assert log.read(0, 1000).range.read().endswith(b"%d\0" % number)
    assert _descriptors_below(tmp_path) <= bound
    for log in logs:
        log.abandon()
    assert (files.open_descriptors(), _descriptors_below(tmp_path)) == (0, 0)


def _descriptors_below(directory: Path) -> int:
    """Count this process's open files below the directory, leaving out those of other tests."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(directory))
    return count


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        ("pwrite", lambda file: file.append(b"more")),
        ("ftruncate", lambda file: file.truncate(1)),
        ("fdatasync", lambda file: file.sync()),
    ],
)
def test_failed_writes_name_the_file_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, operation: Callable[..., Any]
) -> None:
    file = DiskFiles().open(str(tmp_path / "a.log"), create=True)
    file.append(b"some")

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(OSError, match=r"No space left on device: '.*a\.log'"):
        patched.setattr(os, call, fail)
        operation(file)
    file.close()
