"""Text files, byte for byte as Kafka writes them, and errors that name the file and line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.storage import checkpoints, partition_metadata
from headrace.storage.checkpoints import CorruptCheckpoint, MetaProperties
from headrace.storage.disk import DiskFiles
from headrace.storage.leader_epochs import EpochEnd, EpochStart, LeaderEpochs

TOPIC_ID = Uuid(bytes(range(16)))


def test_offset_checkpoints_have_kafkas_format() -> None:
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b.c_d-e", 12): 2**63 - 1}
    data = checkpoints.encode_offsets(offsets)
    assert data == b"0\n2\na 0 5\nb.c_d-e 12 9223372036854775807\n"
    assert checkpoints.parse_offsets("x", data.decode()) == offsets
    assert checkpoints.parse_offsets("x", "") == {}
    assert checkpoints.encode_offsets({}) == b"0\n0\n"


@pytest.mark.parametrize(
    "text, line",
    [
        ("1\n0\n", "line 1"),
        ("0\n", "line 2"),
        ("0\nmany\n", "line 2"),
        ("0\n2\na 0 1\n", "line 2"),
        ("0\n1\na 0\n", "line 3"),
        ("0\n2\na 0 1\na -1 1\n", "line 4"),
        ("0\n1\na 0 9223372036854775808\n", "line 3"),
        ("0\n1\na 0 ٣\n", "line 3"),
        ("0\n1\na 0 -5\n", "line 3"),
    ],
)
def test_errors_in_checkpoints_name_the_file_and_line(text: str, line: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=f"some-file, {line}: "):
        checkpoints.parse_offsets("some-file", text)


@given(st.text(max_size=200))
@settings(deadline=None, max_examples=200)
def test_garbage_checkpoints_parse_or_raise_corrupt_checkpoint(text: str) -> None:
    for parse in (checkpoints.parse_offsets, checkpoints.parse_leader_epochs):
        for candidate in (text, f"0\n1\n{text}"):
            with contextlib.suppress(CorruptCheckpoint):
                parse("x", candidate)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_garbage_in_other_files_is_read_or_raises_corrupt_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.write_bytes(data)
    for read in (
        partition_metadata.read_partition_metadata,
        checkpoints.read_meta_properties,
        checkpoints.read_clean_shutdown,
        checkpoints.read_offsets,
    ):
        try:
            read(DiskFiles(), str(path))
        except CorruptCheckpoint as error:
            assert str(path) in str(error)


def test_partition_metadata_has_kafkas_format_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    assert partition_metadata.read_partition_metadata(DiskFiles(), str(path)) is None
    path.write_bytes(partition_metadata.encode_partition_metadata(TOPIC_ID))
    assert path.read_bytes() == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert partition_metadata.read_partition_metadata(DiskFiles(), str(path)) == TOPIC_ID


def test_meta_properties_of_kafka_are_read_and_need_a_cluster_id(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    meta = MetaProperties(cluster_id="2LPl-nGAQryaKS9SNiYnIw", node_id=NodeId(3), directory_id=TOPIC_ID)
    path.write_bytes(checkpoints.encode_meta_properties(meta))
    assert checkpoints.read_meta_properties(DiskFiles(), str(path)) == meta
    kafkas = "#\n#Mon Nov 16 01:59:48 UTC 2026\nnode.id=3\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\nversion=1\n"
    path.write_text(kafkas + "cluster.id=2LPl-nGAQryaKS9SNiYnIw\n")
    assert checkpoints.read_meta_properties(DiskFiles(), str(path)) == meta
    path.write_text(kafkas)
    with pytest.raises(CorruptCheckpoint, match=r"meta\.properties: cluster\.id is missing"):
        checkpoints.read_meta_properties(DiskFiles(), str(path))


def test_the_clean_shutdown_marker_round_trips_and_garbage_reads_as_minus_1(tmp_path: Path) -> None:
    path = tmp_path / ".kafka_cleanshutdown"
    assert checkpoints.read_clean_shutdown(DiskFiles(), str(path)) is None
    path.write_bytes(checkpoints.encode_clean_shutdown(12))
    assert path.read_bytes() == b'{"version":0,"brokerEpoch":12}'
    assert checkpoints.read_clean_shutdown(DiskFiles(), str(path)) == 12
    for garbled in (b"", b'{"version":0,"brokerEpoch":Infinity}', b'{"version":0,"brokerEpoch":NaN}'):
        path.write_bytes(garbled)
        assert checkpoints.read_clean_shutdown(DiskFiles(), str(path)) == -1


def test_leader_epochs_round_trip() -> None:
    entries = [EpochStart(0, 0), EpochStart(4, 17)]
    data = checkpoints.encode_leader_epochs(entries)
    assert data == b"0\n2\n0 0\n4 17\n"
    assert checkpoints.parse_leader_epochs("x", data.decode()) == entries


def test_an_epoch_ends_where_the_next_known_epoch_begins() -> None:
    epochs = LeaderEpochs([EpochStart(2, 10), EpochStart(4, 20), EpochStart(7, 30)])
    assert epochs.end_offset_for(7, 99) == EpochEnd(7, 99)
    assert epochs.end_offset_for(4, 99) == EpochEnd(4, 30)
    assert epochs.end_offset_for(5, 99) == EpochEnd(4, 30)  # epoch 5 has no records
    assert epochs.end_offset_for(1, 99) == EpochEnd(1, 10)
    assert epochs.end_offset_for(8, 99) == EpochEnd(-1, -1)
    assert epochs.end_offset_for(-1, 99) == EpochEnd(-1, -1)
    assert LeaderEpochs().end_offset_for(0, 99) == EpochEnd(-1, -1)
    assert [epochs.epoch_for(offset) for offset in (9, 10, 29, 1000)] == [-1, 2, 4, 7]


def test_assigning_an_epoch_keeps_its_first_offset_and_drops_contradicting_epochs() -> None:
    epochs = LeaderEpochs([EpochStart(2, 10), EpochStart(4, 20)])
    assert not epochs.dirty
    epochs.assign(4, 25)
    assert epochs.entries() == [(2, 10), (4, 20)] and not epochs.dirty
    epochs.assign(5, 20)  # epoch 4 has no records
    assert epochs.entries() == [(2, 10), (5, 20)] and epochs.dirty
    epochs.assign(3, 15)
    assert epochs.entries() == [(2, 10), (3, 15)]
    with pytest.raises(ValueError):
        epochs.assign(-1, 0)


def test_epochs_are_truncated_from_the_start_and_from_the_end() -> None:
    epochs = LeaderEpochs([EpochStart(2, 10), EpochStart(4, 20), EpochStart(7, 30)])
    epochs.truncate_from_end(30)
    assert epochs.entries() == [(2, 10), (4, 20)]
    epochs.truncate_from_start(15)
    assert epochs.entries() == [(2, 15), (4, 20)]
    epochs.truncate_from_start(20)
    assert epochs.entries() == [(4, 20)]
    epochs.truncate_from_end(5)
    assert epochs.entries() == [] and epochs.latest == -1
