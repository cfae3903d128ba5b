"""Data directories: one owner, one identity, Kafka's file names."""

from __future__ import annotations

import errno
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.storage.storage_samples import append, make_batch, open_log, sync

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.storage.checkpoints import RECOVERY_POINT_CHECKPOINT, MetaProperties
from headrace.storage.disk import DiskFiles
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import LogDir, close_log_dirs, open_log_dirs, open_usable_log_dirs
from headrace.storage.names import marked_dir_name


def meta(directory: int, node: int = 1, cluster: str = "c1") -> MetaProperties:
    return MetaProperties(cluster_id=cluster, node_id=NodeId(node), directory_id=Uuid(bytes([directory]) * 16))


def formatted(path: Path, properties: MetaProperties) -> str:
    log_dir = LogDir.open(DiskFiles(), str(path))
    log_dir.format(properties)
    log_dir.close()
    return str(path)


def test_a_directory_in_use_by_another_node_is_refused(tmp_path: Path) -> None:
    held = LogDir.open(DiskFiles(), str(tmp_path))
    with pytest.raises(ConfigError, match="in use by another node"):
        LogDir.open(DiskFiles(), str(tmp_path))
    held.close()
    LogDir.open(DiskFiles(), str(tmp_path)).close()


def test_a_formatted_directory_cannot_be_formatted_again(tmp_path: Path) -> None:
    formatted(tmp_path, meta(1))
    log_dir = LogDir.open(DiskFiles(), str(tmp_path))
    assert log_dir.meta == meta(1)
    with pytest.raises(ConfigError, match="already formatted"):
        log_dir.format(meta(2))
    log_dir.close()


@pytest.mark.parametrize(
    "second, message",
    [
        (meta(2, node=9), "belongs to node 9"),
        (meta(2, cluster="other"), "belongs to cluster other"),
        (meta(1), "the same directory id"),
    ],
)
def test_directories_with_conflicting_identities_are_refused_and_unlocked(
    tmp_path: Path, second: MetaProperties, message: str
) -> None:
    paths = [formatted(tmp_path / "a", meta(1)), formatted(tmp_path / "b", second)]
    with pytest.raises(ConfigError, match=message):
        open_log_dirs(DiskFiles(), paths)
    close_log_dirs(open_log_dirs(DiskFiles(), paths[:1], node_id=NodeId(1), cluster_id="c1"))
    with pytest.raises(ConfigError, match="each once"):
        open_log_dirs(DiskFiles(), [paths[0], paths[0]])
    with pytest.raises(ConfigError, match="this is node 2"):
        open_log_dirs(DiskFiles(), paths[:1], node_id=NodeId(2))


def test_directory_contents_are_recognized_by_kafkas_names(tmp_path: Path) -> None:
    names = (
        "a-0",
        "b-c-12",
        "__cluster_metadata-0",
        "a-1.0123456789abcdef-delete",
        "a-2.x-future",
        "a-3.x-stray",
        "lost+found",
        "-5",
        "a-x",
    )
    for name in names:
        (tmp_path / name).mkdir()
    log_dir = LogDir.open(DiskFiles(), str(tmp_path))
    contents = log_dir.contents()
    assert contents.partitions == {
        TopicPartition("a", 0): f"{tmp_path}/a-0",
        TopicPartition("b-c", 12): f"{tmp_path}/b-c-12",
    }
    assert contents.deleted == [f"{tmp_path}/a-1.0123456789abcdef-delete"]
    assert log_dir.remove_deleted() == contents.deleted
    assert log_dir.contents().deleted == []
    assert log_dir.partition_path(TopicPartition("a", 0)) == f"{tmp_path}/a-0"
    log_dir.close()


def test_checkpoints_round_trip_and_the_clean_shutdown_marker_is_taken_once(tmp_path: Path) -> None:
    log_dir = LogDir.open(DiskFiles(), str(tmp_path))
    offsets = {TopicPartition("a", 0): 5}
    assert log_dir.load_offsets(RECOVERY_POINT_CHECKPOINT) == {}
    log_dir.write_offsets(RECOVERY_POINT_CHECKPOINT, offsets)
    assert log_dir.load_offsets(RECOVERY_POINT_CHECKPOINT) == offsets
    (tmp_path / RECOVERY_POINT_CHECKPOINT).write_bytes(b"0\n1\n\xff\xfe")
    assert log_dir.load_offsets(RECOVERY_POINT_CHECKPOINT) == {}
    assert RECOVERY_POINT_CHECKPOINT in log_dir.checkpoint_damage[0]
    assert log_dir.take_clean_shutdown() is None
    log_dir.mark_clean_shutdown(8)
    assert log_dir.take_clean_shutdown() == 8
    assert log_dir.take_clean_shutdown() is None
    log_dir.close()


def test_a_deleted_log_is_renamed_and_a_new_one_can_be_created(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    append(log, make_batch(3))
    moved = log.delete_directory("0" * 32)
    assert Path(moved).name == f"orders-0.{'0' * 32}-delete" and Path(moved).is_dir()
    log, _ = open_log(tmp_path)
    assert log.log_end == 0
    long_name = marked_dir_name(TopicPartition("t" * 249, 3), "0" * 32, "-delete")
    assert len(long_name) == 255 and long_name.endswith(f"t-3.{'0' * 32}-delete")


def test_segments_roll_by_time_and_refuse_batches_larger_than_a_segment(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, LogConfig(segment_ms=1000))
    append(log, make_batch([5000]))
    append(log, make_batch([6000]))
    assert len(log.segments) == 1
    append(log, make_batch([6001]))
    assert log.segments.base_offsets() == [0, 2]
    jittered = LogConfig(segment_ms=1000, segment_jitter_ms=500)
    log.configure(jittered)
    assert {500 < segment.roll_after_ms <= 1000 for segment in log.segments} == {True}
    log.configure(LogConfig(segment_bytes=100))
    with pytest.raises(KafkaError) as caught:
        append(log, make_batch(5))
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_full_index_rolls_the_segment(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, LogConfig(index_interval_bytes=0, segment_index_bytes=48))
    for number in range(20):
        append(log, make_batch([1000 + number]))
    assert len(log.segments) > 3
    for segment in list(log.segments)[:-1]:
        assert len(segment.offset_index) <= 6 and len(segment.time_index) <= 4


def test_a_flush_is_due_flush_ms_after_new_records_are_noticed(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, LogConfig(flush_ms=1000))
    assert not log.flush_due(0) and not log.flush_due(5000)
    append(log, make_batch(2))
    assert not log.flush_due(6000) and not log.flush_due(6999)
    append(log, make_batch(1))  # more records do not postpone it
    assert log.flush_due(7000)
    sync(log)
    assert not log.flush_due(7001)


def open_usable_dirs(paths: list[str], files: DiskFiles | None = None) -> tuple[list[str], dict[str, OSError]]:
    log_dirs, failed = open_usable_log_dirs(files or DiskFiles(), paths, paths[0], node_id=NodeId(1))
    close_log_dirs(log_dirs)
    return [log_dir.path for log_dir in log_dirs], failed


def test_new_directories_are_created_but_missing_ones_of_a_known_node_are_reported(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    assert open_usable_dirs(paths) == (paths, {})
    formatted(tmp_path / "a", meta(1))
    shutil.rmtree(paths[1])
    found, failed = open_usable_dirs(paths)
    assert (found, list(failed)) == ([paths[0], paths[2]], [paths[1]])
    assert "does not exist" in str(failed[paths[1]]) and not (tmp_path / "b").exists()
    shutil.rmtree(paths[0])
    formatted(tmp_path / "b", meta(2))
    with pytest.raises(ConfigError, match="the node cannot start without it"):
        open_usable_dirs(paths)


def test_an_unusable_directory_is_skipped_unless_it_is_the_metadata_directory(tmp_path: Path) -> None:
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    formatted(tmp_path / "a", meta(1))
    (tmp_path / "b").write_text("a file")
    found, failed = open_usable_dirs(paths)
    assert (found, list(failed)) == (paths[:1], paths[1:])
    with pytest.raises(ConfigError, match=r"metadata\.log\.dir: .* cannot be used"):
        open_usable_dirs(paths[::-1])


class ReadOnlyFiles(DiskFiles):
    """Raises the kernel's error for locks below a directory that is mounted read-only."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = str(path)

    def lock(self, path: str) -> AbstractContextManager[None]:  # type: ignore[override]
        if path.startswith(self._path):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return super().lock(path)


def test_a_read_only_directory_is_skipped(tmp_path: Path) -> None:
    paths = [formatted(tmp_path / "a", meta(1)), formatted(tmp_path / "b", meta(2))]
    found, failed = open_usable_dirs(paths, ReadOnlyFiles(tmp_path / "b"))
    assert found == paths[:1] and failed[paths[1]].errno == errno.EROFS
    assert open_usable_dirs(paths) == (paths, {})
