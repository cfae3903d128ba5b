"""`headrace format`: the features of a new cluster, by Kafka release or one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command_line import CommandLine

from headrace.node.formatting import read_bootstrap
from headrace.protocol.messages.stored.metadata_cluster import FeatureLevelRecord
from headrace.storage.disk import DiskFiles
from headrace.testing.processes import NodeProcess

ELR = "eligible.leader.replicas.version"
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
        (("-f", "kraft.version=1"), "static quorum"),
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
