"""The layout of a local cluster: roles, ports and settings."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.local_cluster.layout import (
    HTTP_PORT_DISTANCE,
    NODES_MAX,
    Layout,
    check_settings,
    grow,
    node_settings,
    plan_nodes,
    replication_settings,
)
from headrace.node.configuration.settings import make_settings

COMBINED = ["broker", "controller"]


def layout_of(brokers: int, controllers: int | None = None, **settings: str) -> Layout:
    return Layout(
        cluster_id="4L6g3nShT-eMCtK--X86sw",
        first_port=9092,
        nodes=plan_nodes(brokers, controllers, 9092),
        settings={name.replace("_", "."): value for name, value in settings.items()},
    )


@pytest.mark.parametrize(("brokers", "voters"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_first_three_combined_nodes_are_controllers(brokers: int, voters: int) -> None:
    nodes = plan_nodes(brokers, None, 9092)
    assert [node.id for node in nodes] == list(range(1, brokers + 1))
    assert [node.roles for node in nodes] == [COMBINED] * voters + [["broker"]] * (brokers - voters)


def test_separate_controllers_have_the_ids_after_the_brokers() -> None:
    nodes = plan_nodes(2, 3, 9092)
    assert [(node.id, *node.roles) for node in nodes] == [
        (1, "broker"),
        (2, "broker"),
        (3, "controller"),
        (4, "controller"),
        (5, "controller"),
    ]


def test_no_two_nodes_share_a_port_even_in_the_largest_cluster() -> None:
    ports = [port for node in plan_nodes(NODES_MAX, None, 9092) for port in node.ports]
    assert len(set(ports)) == len(ports)
    assert plan_nodes(1, None, 9092)[0].http_port == 9092 + HTTP_PORT_DISTANCE == 9404


@pytest.mark.parametrize(
    ("brokers", "controllers", "port", "expected"), [(40, 20, 9092, "at most 50 nodes"), (3, None, 65_500, "65812")]
)
def test_too_many_nodes_or_too_large_ports_are_refused(
    brokers: int, controllers: int | None, port: int, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        plan_nodes(brokers, controllers, port)


@pytest.mark.parametrize("controllers", [None, 3])
def test_every_node_has_valid_settings_with_the_same_voters(controllers: int | None) -> None:
    layout = layout_of(3, controllers)
    for node in layout.nodes:
        settings = make_settings({**layout.settings_of(node), "log.dirs": "data"}, single_node=False)
        assert settings.node_id == node.id and sorted(settings.roles) == node.roles
        assert len(settings.quorum_voters) == 3 and not settings.is_alone


def test_new_topics_tolerate_the_loss_of_one_broker() -> None:
    replication = {brokers: replication_settings(brokers) for brokers in (1, 2, 3, 5)}
    assert {
        brokers: (one["default.replication.factor"], one["min.insync.replicas"]) for brokers, one in replication.items()
    } == {1: ("1", "1"), 2: ("2", "1"), 3: ("3", "2"), 5: ("3", "2")}
    assert (
        replication[3]["offsets.topic.replication.factor"]
        == replication[3]["transaction.state.log.replication.factor"]
        == "3"
    )


def test_the_users_settings_override_those_of_the_layout() -> None:
    layout = layout_of(3, None, min_insync_replicas="1")
    assert layout.settings_of(layout.nodes[0])["min.insync.replicas"] == "1"
    with pytest.raises(ConfigError, match=r"-c node\.id: it follows from the layout"):
        check_settings({"num.partitions": "3", "node.id": "7"})


def test_added_brokers_get_new_ids_and_leave_the_voters_unchanged() -> None:
    before = layout_of(3, 3)
    after = grow(before, 5)
    assert [node.id for node in after.brokers] == [1, 2, 3, 7, 8]
    assert after.nodes[:6] == before.nodes
    first, last = (node_settings(node, after.nodes) for node in (after.nodes[0], after.nodes[-1]))
    assert first["controller.quorum.voters"] == last["controller.quorum.voters"]
    assert grow(before, 3) == before


def test_starting_with_fewer_brokers_is_refused_with_the_alternatives() -> None:
    with pytest.raises(ConfigError, match=r"has 3 brokers.*cluster stop ID.*cluster delete"):
        grow(layout_of(3), 2)


def test_an_unknown_node_is_refused_with_the_ids_that_exist() -> None:
    with pytest.raises(ConfigError, match="no node 4 in this cluster; its nodes are 1, 2, 3"):
        layout_of(3).node(4)
