"""Damaged, full and broken disks under a real node: only the affected partition suffers."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.server.raw_client import RawClient, assert_still_serving, batch, count_records, make_topic

from headrace.base.errors import ErrorCode
from headrace.storage.disk import DiskFiles
from headrace.storage.files import Buffer, File
from headrace.testing.cluster import EmbeddedNode

BATCHES = 5


def write_and_stop(directory: Path, *, clean: bool = False) -> Path:
    """Write five batches of two records to one topic and return its partition's log file."""
    with EmbeddedNode(data_dir=directory) as node:
        make_topic(node, "damaged")
        with RawClient(node) as client:
            for number in range(BATCHES):
                assert client.produce("damaged", batch(b"%d" % number, b"second")).error_code == ErrorCode.NONE
        if not clean:
            node.kill()
    return directory / "damaged-0" / f"{0:020d}.log"


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def assert_starts_with(directory: Path, expected_records: int) -> None:
    """Check that the node starts, serves the intact records and accepts more."""
    with EmbeddedNode(data_dir=directory) as node:
        with RawClient(node) as client:
            assert client.log_end("damaged") == expected_records
            assert count_records(client.fetch("damaged").records) == expected_records
            response = client.produce("damaged", batch(b"after"))
            assert (response.error_code, response.base_offset) == (ErrorCode.NONE, expected_records)
            assert count_records(client.fetch("damaged").records) == expected_records + 1
        assert_still_serving(node)


def test_a_torn_last_batch_is_truncated_at_startup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = write_and_stop(tmp_path)
    log.write_bytes(log.read_bytes()[:-7])
    with caplog.at_level(logging.WARNING):
        assert_starts_with(tmp_path, 2 * (BATCHES - 1))
    assert "recovery" in caplog.text


def test_garbage_after_the_last_batch_is_truncated_at_startup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = write_and_stop(tmp_path)
    log.write_bytes(log.read_bytes() + bytes(4096))
    with caplog.at_level(logging.WARNING):
        assert_starts_with(tmp_path, 2 * BATCHES)
    assert "recovery" in caplog.text


def test_a_flipped_bit_truncates_the_log_at_the_damaged_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = write_and_stop(tmp_path)
    flip_bit(log, log.stat().st_size - 3)
    with caplog.at_level(logging.WARNING):
        assert_starts_with(tmp_path, 2 * (BATCHES - 1))
    assert "recovery" in caplog.text


@pytest.mark.parametrize("clean", [False, True], ids=["after a kill", "after a clean stop"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "noise", "odd size"])
def test_a_damaged_index_is_rebuilt_at_startup(tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    index = write_and_stop(tmp_path, clean=clean).with_suffix(suffix)
    index.unlink(missing_ok=True)
    if damage == "noise":
        index.write_bytes(b"\xff" * 96)
    elif damage == "odd size":
        index.write_bytes(b"\x01" * 13)
    assert_starts_with(tmp_path, 2 * BATCHES)


@pytest.mark.parametrize(
    "name", ["leader-epoch-checkpoint", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"]
)
def test_a_damaged_checkpoint_loses_no_records(tmp_path: Path, name: str) -> None:
    log = write_and_stop(tmp_path, clean=True)
    for path in (log.parent / name, tmp_path / name):
        if path.exists():
            path.write_bytes(b"no checkpoint\xff")
    assert_starts_with(tmp_path, 2 * BATCHES)


class BrokenDisk(DiskFiles):
    """Refuses appends to the logs of one topic while `error` is set."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self.error: int | None = None

    def open(self, path: str, *, create: bool = False) -> File:  # type: ignore[override]
        file = super().open(path, create=create)
        return _BrokenFile(self, file) if f"/{self._topic}-" in path and path.endswith(".log") else file  # type: ignore[return-value]

    def list_dir(self, path: str) -> Sequence[str]:
        return super().list_dir(path)

    def lock(self, path: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return super().lock(path)


class _BrokenFile:
    def __init__(self, disk: BrokenDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path

    def append(self, data: Buffer) -> int:
        if self._disk.error is not None:
            raise OSError(self._disk.error, "the test says so")
        return self._file.append(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


@pytest.mark.parametrize("stamped_by", ["CreateTime", "LogAppendTime"])
def test_a_full_disk_refuses_appends_until_there_is_space_again(
    stamped_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = BrokenDisk("full")
    with EmbeddedNode({"log.message.timestamp.type": stamped_by}, files=disk) as node:
        make_topic(node, "full")
        with RawClient(node) as client:
            assert client.produce("full", batch(b"before")).error_code == ErrorCode.NONE
            disk.error = errno.ENOSPC
            with caplog.at_level(logging.ERROR):
                assert client.produce("full", batch(b"no room")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "the disk is full" in caplog.text
            assert count_records(client.fetch("full").records) == 1
            assert_still_serving(node)
            disk.error = None
            response = client.produce("full", batch(b"room again"))
            assert (response.error_code, response.base_offset) == (ErrorCode.NONE, 1)


def test_a_broken_disk_takes_only_its_own_partition_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Break one of two directories: without its only one, or that of the metadata log, the node would have to stop."""
    disk = BrokenDisk("broken")
    dirs = {"log.dirs": f"{tmp_path}/first,{tmp_path}/second"}
    with EmbeddedNode(dirs, data_dir=tmp_path, files=disk) as node:
        make_topic(node, "sound")
        make_topic(node, "broken")
        assert (tmp_path / "second" / "broken-0").is_dir()
        with RawClient(node) as client:
            assert client.produce("broken", batch(b"before")).error_code == ErrorCode.NONE
            disk.error = errno.EIO
            with caplog.at_level(logging.ERROR):
                assert client.produce("broken", batch(b"lost")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "offline" in caplog.text
            disk.error = None
            assert client.produce("broken", batch(b"too late")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert_still_serving(node)
        assert node.node is not None and node.node.health()["offline_partitions"] == ["broken-0"]
        # Acknowledged records are there after the disk is repaired and the node restarted.
        node.kill()
        node.start()
        with RawClient(node) as client:
            assert count_records(client.fetch("broken").records) == 1
