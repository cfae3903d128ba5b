"""FindCoordinator: every version finds a group's broker; the internal topic is created with the configured options."""

import pytest
from admin_client import TOPIC, Admin

from headrace.base.errors import ErrorCode
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.testing.cluster import EmbeddedNode


@pytest.fixture(scope="module")
def node():
    with EmbeddedNode(
        {
            "offsets.topic.num.partitions": "7",
            "offsets.topic.segment.bytes": "2000000",
            "transaction.state.log.num.partitions": "5",
        }
    ) as running:
        yield running


def find(admin, version, key="group", key_type=0):
    keys = {"key": key} if version < 4 else {"coordinator_keys": [key, f"{key}-too"]}
    if version > 0:
        keys["key_type"] = key_type
    answer = admin.ask(FindCoordinatorRequest(**keys), version)
    return [answer] if version < 4 else answer.coordinators


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_found(node, version):
    for one in find(Admin(node.port), version):
        assert (one.error_code, one.node_id, one.port) == (ErrorCode.NONE, 1, node.port)


def test_a_broker_that_has_not_opened_the_partition_yet_is_not_named(node, monkeypatch):
    find(Admin(node.port), 6)
    monkeypatch.setattr(node.node.broker.groups, "leads", lambda key: False)
    for one in find(Admin(node.port), 6):
        assert (one.error_code, one.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


def test_its_topic_is_made_as_the_options_say(node):
    admin = Admin(node.port)
    find(admin, 6)
    topic = node.node.broker.image.topics["__consumer_offsets"]
    assert len(topic.partitions) == 7
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC,
        resource_name="__consumer_offsets",
        configuration_keys=["cleanup.policy", "segment.bytes", "compression.type"],
    )
    found = admin.ask(DescribeConfigsRequest(resources=[resource])).results[0].configs
    assert {one.name: one.value for one in found} == {
        "cleanup.policy": "compact", "segment.bytes": "2000000", "compression.type": "producer",
    }  # fmt: skip


@pytest.mark.parametrize("version", range(1, 7))
def test_a_transactional_id_is_found(node, version):
    for one in find(Admin(node.port), version, key_type=1):
        assert (one.error_code, one.node_id, one.port) == (ErrorCode.NONE, 1, node.port)


def test_what_nobody_coordinates_is_said(node):
    admin = Admin(node.port)
    for version in (1, 4, 6):
        assert {one.error_code for one in find(admin, version, key_type=9)} == {ErrorCode.INVALID_REQUEST}
