"""The folder of a local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.local_cluster.folder import ClusterFolder, to_properties
from headrace.local_cluster.layout import Layout, plan_nodes
from headrace.options.table import parse_properties

LAYOUT = Layout(
    cluster_id="4L6g3nShT-eMCtK--X86sw", first_port=9092, nodes=plan_nodes(2, 1, 9092), settings={"num.partitions": "3"}
)


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.path.mkdir()
    return folder


def test_a_saved_layout_is_loaded_again(folder: ClusterFolder) -> None:
    assert not folder.is_cluster
    folder.save(LAYOUT)
    assert folder.is_cluster and ClusterFolder(folder.path).load() == LAYOUT
    folder.check_usable()


def test_a_folder_without_a_cluster_is_reported_with_the_way_to_make_one(folder: ClusterFolder) -> None:
    with pytest.raises(ConfigError, match=r"no cluster in .*; `headrace cluster start` makes one"):
        folder.load()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cluster_id": 1}', '{"cluster_id":"x","first_port":1,"nodes":[],"settings":{}}', "\xff"]
)
def test_a_damaged_layout_is_reported_with_its_file(folder: ClusterFolder, text: str) -> None:
    (folder.path / "cluster.json").write_text(text)
    with pytest.raises(ConfigError, match=r"cluster\.json is not the layout of a cluster"):
        folder.load()


def test_a_folder_of_another_program_is_refused_and_left_alone(folder: ClusterFolder) -> None:
    (folder.path / "thesis.tex").write_text("text")
    with pytest.raises(ConfigError, match=r"files of another program, such as thesis\.tex"):
        folder.check_usable()
    with pytest.raises(ConfigError, match="is not a folder"):
        ClusterFolder(folder.path / "thesis.tex").check_usable()
    with pytest.raises(ConfigError, match="comma"):
        ClusterFolder(folder.path / "a,b").check_usable()


def test_a_folder_that_an_interrupted_start_left_is_usable(folder: ClusterFolder) -> None:
    with folder.locked():
        folder.check_usable()
    folder.check_usable()


def test_a_second_command_is_refused_while_the_first_holds_the_lock(folder: ClusterFolder) -> None:
    with folder.locked(), pytest.raises(ConfigError, match="another `headrace cluster` command"), folder.locked():
        pass
    with folder.locked():
        pass


def test_preparing_a_node_formats_its_data_once_and_renews_its_settings(folder: ClusterFolder) -> None:
    node = LAYOUT.nodes[0]
    for _ in range(2):
        folder.prepare(LAYOUT, node)
    meta = (folder.node(1).data / "meta.properties").read_text()
    assert f"cluster.id={LAYOUT.cluster_id}" in meta and "node.id=1" in meta
    settings = parse_properties(folder.node(1).properties.read_text(), "file")
    assert settings["num.partitions"] == "3" and settings["log.dirs"] == str(folder.node(1).data)


def test_removing_a_cluster_keeps_files_that_are_not_its_own(folder: ClusterFolder) -> None:
    folder.save(LAYOUT)
    for node in LAYOUT.nodes:
        folder.prepare(LAYOUT, node)
    (folder.path / "notes").write_text("mine")
    folder.remove(LAYOUT)
    assert [one.name for one in folder.path.iterdir()] == ["notes"]
    (folder.path / "notes").unlink()
    folder.save(LAYOUT)
    folder.remove(LAYOUT)
    assert not folder.path.exists()


def test_a_properties_file_reads_back_what_was_written() -> None:
    settings = {"a": "1", "ssl.principal.mapping.rules": r"RULE:^CN=(.*?)\.x$/$1/", "lines": "one\ntwo", "empty": ""}
    assert parse_properties(to_properties(settings), "file") == settings
