"""`headrace format`: the features of a new cluster, by Kafka release or one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command_line import CommandLine

from headrace.base.ids import NodeId, uuid_text
from headrace.node.new_cluster.formatting import read_bootstrap
from headrace.protocol.messages.stored.metadata_cluster import FeatureLevelRecord
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId
from headrace.quorum.voter_records import VoterRecords
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from headrace.storage.checkpoints import read_meta_properties
from headrace.storage.disk import DiskFiles
from headrace.testing.processes import NodeProcess

ELR = "eligible.leader.replicas.version"
DIRECTORY = "ZGRkZGRkZGRkZGRkZGRkZA"
BROKER_ONLY = (
    "-c", "process.roles=broker", "-c", "listeners=PLAINTEXT://localhost:9092",
    "-c", "controller.quorum.bootstrap.servers=localhost:9093", "-c", "controller.listener.names=CONTROLLER",
)  # fmt: skip
OVERRIDES = ("-r", "4.0.1", "-f", "transaction.version=0", "-f", "kraft.version=0")


def features_of(directory: Path) -> dict[str, int]:
    records = read_bootstrap(DiskFiles(), str(directory))
    return {record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)}


@pytest.mark.parametrize(
    "options, levels",
    [
        ((), {"metadata.version": 30, "group.version": 1, "transaction.version": 2, ELR: 1}),
        (("-r", "4.0"), {"metadata.version": 25, "group.version": 1, "transaction.version": 2}),
        (("--release-version", "3.7-IV2"), {"metadata.version": 17}),
        (OVERRIDES, {"metadata.version": 25, "group.version": 1}),
        (("--feature", "metadata.version=23", "-f", f"{ELR}=1"), {"metadata.version": 23, "group.version": 1, ELR: 1}),
    ],
)
def test_format_writes_the_features_of_a_release_and_explicit_overrides(
    headrace: CommandLine, tmp_path: Path, options: tuple[str, ...], levels: dict[str, int]
) -> None:
    headrace("format", "-c", f"log.dirs={tmp_path}/data", *options)
    assert features_of(tmp_path / "data") == levels


@pytest.mark.parametrize(
    "options, expected_message",
    [
        (("-r", "4.9"), "--release-version 4.9: unknown; supported are 3.3-IV3"),
        (("-r", "4.0", "-f", "metadata.version=30"), "give only one of them"),
        (("-f", "no.such=1"), "no.such: unknown"),
        (("-f", "transaction.version=3"), "from 0 to 2"),
        (("-f", "metadata.version=31"), "from 7 to 30"),
        (("-f", "transaction.version"), "expected NAME=LEVEL"),
        (("-f", "kraft.version=1"), "needs --standalone"),
        (("--standalone", "--no-initial-controllers"), "give only one of"),
        (("--standalone", "-r", "3.8"), "a dynamic quorum needs metadata.version 3.9-IV0 or newer, not 3.8-IV0"),
        (("--standalone", "-c", "controller.quorum.voters=1@localhost:9093"), "makes the quorum static"),
        (("--standalone", *BROKER_ONLY), "this node is no controller"),
        (("-c", "controller.quorum.bootstrap.servers=other:9093"), "give --standalone, --initial-controllers or"),
        (("--initial-controllers", "1@localhost:9093"), "expected id@host:port:directory-id"),
        (("-I", f"2@localhost:9093:{DIRECTORY}"), "this node (1) is not among them"),
        (("-I", f"1@a:9093:{DIRECTORY},1@b:9093:{DIRECTORY}"), "node 1 appears twice"),
        (("-I", f"1@localhost:99999:{DIRECTORY}"), "expected id@host:port:directory-id"),
        (("-f", "share.version=1"), "serves no share groups"),
        (("-r", "3.9", "-f", f"{ELR}=1"), "needs metadata.version 4.0-IV1 or newer, not 3.9-IV0"),
        (("-r", "3.4", "-S", "SCRAM-SHA-256=[name=a,password=b]"), "needs metadata.version 3.5-IV2"),
    ],
)
def test_format_refuses_invalid_features_and_writes_nothing(
    headrace: CommandLine, tmp_path: Path, options: tuple[str, ...], expected_message: str
) -> None:
    output = headrace("format", "-c", f"log.dirs={tmp_path}/data", *options, fails=True)
    assert expected_message in " ".join(output.split())
    assert not (tmp_path / "data").exists()


def test_a_node_keeps_the_features_it_was_formatted_with(headrace: CommandLine, tmp_path: Path) -> None:
    headrace("format", "-c", f"log.dirs={tmp_path}/data", "-r", "3.9")
    with NodeProcess(directory=tmp_path) as node:
        assert node.terminate() == 0
    assert features_of(tmp_path / "data") == {"metadata.version": 21}


def voters_in(directory: Path) -> VoterRecords:
    snapshots = SnapshotFiles(DiskFiles(), str(directory / "__cluster_metadata-0"))
    return VoterRecords().after(snapshots.control_of(SnapshotId(0, 0)))


def test_a_standalone_controller_is_the_only_voter_with_the_directory_id_of_its_disk(
    headrace: CommandLine, tmp_path: Path
) -> None:
    headrace("format", "-c", f"log.dirs={tmp_path}/data", "--standalone", "-f", "kraft.version=1")
    meta = read_meta_properties(DiskFiles(), f"{tmp_path}/data/meta.properties")
    found = voters_in(tmp_path / "data")
    assert meta is not None and found.kraft_version == 1
    endpoint = Endpoint("CONTROLLER", "localhost", 9093)
    assert found.voters == VoterSet([Voter(ReplicaKey(NodeId(1), meta.directory_id), (endpoint,))])
    assert "kraft.version" not in features_of(tmp_path / "data")


def test_initial_controllers_are_the_same_on_each_node_and_give_each_its_directory_id(
    headrace: CommandLine, tmp_path: Path
) -> None:
    other = "ZWVlZWVlZWVlZWVlZWVlZQ"
    voters = f"1@localhost:9093:{DIRECTORY},2@[::1]:9094:{other}"
    for node_id, directory in ((1, DIRECTORY), (2, other)):
        path = tmp_path / str(node_id)
        headrace("format", "-c", f"log.dirs={path}", "-c", f"node.id={node_id}", "-I", voters)
        meta = read_meta_properties(DiskFiles(), f"{path}/meta.properties")
        assert meta is not None and uuid_text(meta.directory_id) == directory
        found = voters_in(path).voters
        assert found is not None and found.ids == [1, 2]
        assert found.voters[1].endpoints == (Endpoint("CONTROLLER", "::1", 9094),)


def test_a_controller_that_joins_later_has_no_voters(headrace: CommandLine, tmp_path: Path) -> None:
    bootstrap = "controller.quorum.bootstrap.servers=other:9093"
    headrace("format", "-c", f"log.dirs={tmp_path}/data", "-c", bootstrap, "--no-initial-controllers")
    assert not (tmp_path / "data" / "__cluster_metadata-0").exists()


def test_settings_whose_only_bootstrap_server_is_the_node_itself_form_a_dynamic_quorum(
    headrace: CommandLine, tmp_path: Path
) -> None:
    headrace("format", "-c", f"log.dirs={tmp_path}/data", "-c", "controller.quorum.bootstrap.servers=localhost:9093")
    assert voters_in(tmp_path / "data").kraft_version == 1
