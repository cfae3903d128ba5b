"""The simulated disk: without a crash it behaves like a real one; after one it keeps what it must and may lose the rest."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.simulator.disk import SimulatedFiles

from headrace.storage.disk import DiskFiles
from headrace.storage.files import ShortWrite, read_all, write_atomically

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), NAMES, st.booleans()),
        st.tuples(st.just("append"), st.integers(0, 5), st.binary(max_size=20)),
        st.tuples(st.just("read"), st.integers(0, 5), st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.just("truncate"), st.integers(0, 5), st.integers(0, 30)),
        st.tuples(st.just("size"), st.integers(0, 5)),
        st.tuples(st.just("sync"), st.integers(0, 5)),
        st.tuples(st.just("close"), st.integers(0, 5)),
        st.tuples(st.just("make_dirs"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("exists"), NAMES),
        st.tuples(st.just("list_dir"), NAMES),
        st.tuples(st.just("sync_dir"), NAMES),
    ),
    max_size=30,
)


class StepRunner:
    """Plays steps on a disk and returns their results."""

    def __init__(self, files: Any, root: str) -> None:
        self.files = files
        self.root = root
        self.open_files: list[Any] = []
        files.make_dirs(f"{root}/d")

    def run_step(self, step: tuple[Any, ...]) -> Any:
        try:
            return self._run_step(*step)
        except (OSError, ValueError) as error:
            return type(error), getattr(error, "errno", None)

    def _run_step(self, what: str, *arguments: Any) -> Any:
        if what in ("append", "read", "truncate", "size", "sync", "close"):
            if arguments[0] >= len(self.open_files):
                return None
            return getattr(self.open_files[arguments[0]], what)(*arguments[1:])
        if what == "open":
            self.open_files.append(self.files.open(f"{self.root}/{arguments[0]}", create=arguments[1]))
            return None
        return getattr(self.files, what)(*(f"{self.root}/{name}" for name in arguments))


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_without_a_crash_the_simulated_disk_behaves_like_a_real_one(steps: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as directory:
        real, simulated = StepRunner(DiskFiles(), directory), StepRunner(SimulatedFiles(Random(0)), "/data")
        for step in steps:
            assert simulated.run_step(step) == real.run_step(step), step
        for file in [*real.open_files]:
            file.close()


def test_locks_and_atomic_writes_work_as_on_a_real_disk(tmp_path: Path) -> None:
    for files, root in ((DiskFiles(), str(tmp_path)), (SimulatedFiles(Random(0)), "/data")):
        files.make_dirs(root)
        with files.lock(f"{root}/.lock"), pytest.raises(BlockingIOError), files.lock(f"{root}/.lock"):
            pass
        with files.lock(f"{root}/.lock"):
            write_atomically(files, f"{root}/c", b"new")
        assert read_all(files, f"{root}/c", 10) == b"new"


def new_disk(seed: int = 0) -> SimulatedFiles:
    files = SimulatedFiles(Random(seed))
    files.make_dirs("/data")
    files.sync_dir("/")
    return files


def test_a_process_crash_loses_only_locks_and_open_files() -> None:
    files = new_disk()
    lock = files.lock("/data/.lock")
    lock.__enter__()
    file = files.open("/data/a", create=True)
    file.append(b"never synced")
    files.process_crash()
    with pytest.raises(AssertionError, match="has ended"):
        file.append(b"from the grave")
    with files.lock("/data/.lock"):
        lock.__exit__(None, None, None)  # a dead process's release does not affect the new lock
        with pytest.raises(BlockingIOError), files.lock("/data/.lock"):
            pass
    assert read_all(files, "/data/a", 100) == b"never synced"


def test_a_power_loss_keeps_synced_data_and_a_torn_part_of_the_rest() -> None:
    synced, tail = b"s" * 1000, bytes(range(1, 256)) * 8
    sizes: set[int] = set()
    torn = 0
    holes = 0
    for seed in range(200):
        files = new_disk(seed)
        file = files.open("/data/a", create=True)
        file.append(synced)
        file.sync()
        files.sync_dir("/data")
        file.append(tail)
        files.power_loss()
        found = read_all(files, "/data/a", 10_000)
        assert found[:1000] == synced
        assert len(found) <= 1000 + len(tail)
        sizes.add(len(found))
        kept = next((n for n, (x, y) in enumerate(zip(found[1000:], tail, strict=False)) if x != y), None)
        torn += kept is not None
        holes += kept is not None and found[-100:] in synced + tail
    assert len(sizes) > 100
    assert torn > 30 and holes > 3


def test_a_power_loss_after_an_atomic_write_loses_nothing() -> None:
    for seed in range(20):
        files = new_disk(seed)
        write_atomically(files, "/data/a", b"content")
        files.open("/data/a").read(0, 1)
        files.power_loss()
        assert read_all(files, "/data/a", 100) == b"content"
        assert files.list_dir("/data") == ["a"]


def test_synced_contents_need_a_sync_of_the_file_and_of_its_name() -> None:
    files = SimulatedFiles(Random(0))
    assert files.synced("/f") is None
    file = files.open("/f", create=True)
    file.append(b"ab")
    file.sync()
    assert files.synced("/f") is None
    files.sync_dir("/")
    file.append(b"c")
    assert files.synced("/f") == b"ab"


def test_a_power_loss_keeps_a_prefix_of_the_unsynced_name_changes() -> None:
    seen: set[str] = set()
    for seed in range(100):
        files = new_disk(seed)
        for name in "abc":
            file = files.open(f"/data/{name}", create=True)
            file.append(b"x")
            file.sync()
        files.rename("/data/a", "/data/d")
        files.power_loss()
        seen.add("".join(files.list_dir("/data")))
    assert seen == {"", "a", "ab", "abc", "bcd"}


def test_a_power_loss_may_lose_an_unsynced_directory_with_its_files() -> None:
    results: set[bool] = set()
    for seed in range(30):
        files = new_disk(seed)
        files.make_dirs("/data/p")
        file = files.open("/data/p/a", create=True)
        file.append(b"x")
        file.sync()
        files.sync_dir("/data/p")
        files.power_loss()
        results.add(files.exists("/data/p/a"))
    assert results == {True, False}


def test_a_power_loss_may_undo_an_unsynced_truncation() -> None:
    results: set[bytes] = set()
    for seed in range(60):
        files = new_disk(seed)
        file = files.open("/data/a", create=True)
        file.append(b"old old old")
        file.sync()
        files.sync_dir("/data")
        file.truncate(3)
        file.append(b"!")
        files.power_loss()
        results.add(read_all(files, "/data/a", 100)[:4])
    assert b"old " in results and b"old!" in results


def test_an_append_that_does_not_fit_on_the_disk_writes_nothing() -> None:
    files = new_disk()
    file = files.open("/data/a", create=True)
    file.append(b"x" * 90)
    files.capacity = 100
    with pytest.raises(ShortWrite):
        file.append(b"y" * 11)
    file.append(b"y" * 10)
    with pytest.raises(OSError) as raised:
        file.append(b"z")
    assert raised.value.errno == errno.ENOSPC
    assert not isinstance(raised.value, ShortWrite)
    assert (file.size(), files.used()) == (100, 100)
    files.capacity = None
    assert file.append(b"z") == 100


def test_data_of_a_failed_sync_is_lost_despite_a_later_sync() -> None:
    for seed in range(20):
        files = new_disk(seed)
        file = files.open("/data/a", create=True)
        file.append(b"synced")
        file.sync()
        files.sync_dir("/data")
        file.append(b"x" * 600)
        files.fault = lambda operation, path: OSError(errno.EIO, "no") if operation == "sync" else None
        with pytest.raises(OSError):
            file.sync()
        files.fault = None
        file.sync()
        assert file.size() == 606
        files.power_loss()
        found = read_all(files, "/data/a", 1000)
        assert found[:6] == b"synced" and found[6:606] != b"x" * 600


def test_a_flipped_bit_survives_a_power_loss() -> None:
    files = new_disk()
    write_atomically(files, "/data/a", b"abc")
    files.flip_bit("/data/a", 1, 0)
    files.power_loss()
    assert read_all(files, "/data/a", 10) == b"acc"


def test_cached_reads_sometimes_miss() -> None:
    files = new_disk()
    file = files.open("/data/a", create=True)
    file.append(b"abc")
    reads = {file.read_cached(0, 3) for _ in range(300)}
    assert reads == {None, b"abc"}
    assert file.read_cached(3, 5) == b""


def test_lose_names_keeps_only_the_chosen_name_changes() -> None:
    files = SimulatedFiles(Random(0))
    files.make_dirs("/d")
    for name in "ab":
        files.open(f"/d/{name}", create=True).append(name.encode())
    files.sync_dir("/d")
    files.rename("/d/a", "/d/c")
    files.rename("/d/b", "/d/a")
    assert files.unsynced_names("/d") == 2
    files.lose_names("/d", {1})
    assert files.list_dir("/d") == ["a"] and files.open("/d/a").read(0, 1) == b"b"
    assert files.unsynced_names("/d") == 0
