"""Folders of the demo, and checks that data, broker and results belong together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.client import Producer
from headrace.demo.folders import (
    PIPELINES,
    Folders,
    NotOurs,
    WrongFolders,
    check_cluster,
    check_node,
    stored_cluster_id,
)
from headrace.demo.nodes import format_cluster
from headrace.demo.shop.requests import Shop
from headrace.demo.shop.topics import SESSIONS
from headrace.pipelines.definitions import load
from headrace.testing.cluster import EmbeddedNode


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folders = Folders(tmp_path / "work", tmp_path / ".headrace")
    folders.make()
    return folders


def test_pipeline_files_are_created_and_valid(folders: Folders) -> None:
    shop, tables = load(folders.pipelines)
    assert {f"{one.name}.yaml" for one in (shop, tables)} == set(PIPELINES)
    assert shop.checkpoint == str(folders.checkpoints / "shop")
    assert {sink.target for sink in tables.sinks.values()} == {str(folders.tables / name) for name in tables.sinks}
    assert set(shop.sinks) == set(tables.sinks)


def test_the_nodes_of_a_cluster_keep_the_id_that_the_first_run_gave_them(folders: Folders) -> None:
    format_cluster(folders)
    assert not folders.data.exists(), "a single node formats its own directory"
    several = folders._replace(brokers=3)
    format_cluster(several)
    ids = [stored_cluster_id(several.data_of(number)) for number in (1, 2, 3)]
    assert ids[0] is not None and len(set(ids)) == 1
    format_cluster(several)
    assert [stored_cluster_id(several.data_of(number)) for number in (1, 2, 3)] == ids


def test_a_second_run_is_refused_with_the_process_id_of_the_first(folders: Folders) -> None:
    with (
        folders.locked(),
        pytest.raises(ConfigError, match=f"running already, as process {os.getpid()}"),
        folders.locked(),
    ):
        pass
    with folders.locked():
        pass


@pytest.fixture
def shop(headrace_node: EmbeddedNode) -> Iterator[Shop]:
    with Shop(headrace_node.bootstrap) as shop:
        shop.prepare()
        yield shop


def test_a_broker_of_another_cluster_is_refused(folders: Folders, shop: Shop) -> None:
    with pytest.raises(NotOurs):
        check_node(folders, shop)
    folders.data.mkdir()
    (folders.data / "meta.properties").write_text("version=1\ncluster.id=another")
    with pytest.raises(NotOurs):
        check_node(folders, shop)
    (folders.data / "meta.properties").write_text(f"version=1\ncluster.id={shop.cluster_id()}\n")
    check_node(folders, shop)


def test_checkpoints_of_another_cluster_are_refused(folders: Folders, shop: Shop) -> None:
    check_cluster(folders, shop)
    check_cluster(folders, shop)
    (folders.shop / "cluster-id").write_text("another")
    with pytest.raises(WrongFolders, match="belongs to another cluster"):
        check_cluster(folders, shop)


def test_existing_results_without_checkpoints_are_refused(
    folders: Folders, shop: Shop, headrace_node: EmbeddedNode
) -> None:
    with Producer({"bootstrap.servers": headrace_node.bootstrap}) as producer:
        producer.send(SESSIONS, b"{}", partition=0).result()
    assert shop.ends([TopicPartition(SESSIONS, 0)]) == {TopicPartition(SESSIONS, 0): 1}
    with pytest.raises(WrongFolders, match="have results, but"):
        check_cluster(folders, shop)
