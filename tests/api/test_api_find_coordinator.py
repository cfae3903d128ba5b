"""FindCoordinator: every version finds a group's broker; the internal topic is created with the configured options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.api.admin_client import TOPIC, Admin

from headrace.base.errors import ErrorCode
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.testing.cluster import EmbeddedNode


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(
        {
            "offsets.topic.num.partitions": "7",
            "offsets.topic.segment.bytes": "2000000",
            "transaction.state.log.num.partitions": "5",
        }
    ) as running:
        yield running


def find(admin: Admin, version: int, key: str = "group", key_type: int = 0) -> list[Any]:
    keys: dict[str, Any] = {"key": key} if version < 4 else {"coordinator_keys": [key, f"{key}-too"]}
    if version > 0:
        keys["key_type"] = key_type
    answer = admin.send_request(FindCoordinatorRequest(**keys), version)
    return [answer] if version < 4 else answer.coordinators


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_returns_the_broker_of_a_group(node: EmbeddedNode, version: int) -> None:
    for one in find(Admin(node.port), version):
        assert (one.error_code, one.node_id, one.port) == (ErrorCode.NONE, 1, node.port)


def test_coordinator_not_available_is_returned_until_the_broker_leads_the_partition(
    node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(Admin(node.port), 6)
    monkeypatch.setattr(node.node.broker.groups, "leads", lambda key: False)
    for one in find(Admin(node.port), 6):
        assert (one.error_code, one.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


def test_the_offsets_topic_is_created_with_the_configured_options(node: EmbeddedNode) -> None:
    admin = Admin(node.port)
    find(admin, 6)
    topic = node.node.broker.image.topics["__consumer_offsets"]
    assert len(topic.partitions) == 7
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC,
        resource_name="__consumer_offsets",
        configuration_keys=["cleanup.policy", "segment.bytes", "compression.type"],
    )
    found = admin.send_request(DescribeConfigsRequest(resources=[resource])).results[0].configs
    assert {one.name: one.value for one in found} == {
        "cleanup.policy": "compact", "segment.bytes": "2000000", "compression.type": "producer",
    }  # fmt: skip


@pytest.mark.parametrize("version", range(1, 7))
def test_find_coordinator_returns_the_broker_of_a_transactional_id(node: EmbeddedNode, version: int) -> None:
    for one in find(Admin(node.port), version, key_type=1):
        assert (one.error_code, one.node_id, one.port) == (ErrorCode.NONE, 1, node.port)


def test_an_unknown_coordinator_key_type_is_an_invalid_request(node: EmbeddedNode) -> None:
    admin = Admin(node.port)
    for version in (1, 4, 6):
        assert {one.error_code for one in find(admin, version, key_type=9)} == {ErrorCode.INVALID_REQUEST}
