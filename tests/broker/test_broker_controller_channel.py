"""A broker's channel to the quorum: it finds the leader, follows it, and repeats requests only where that is safe."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.broker.scripted_controller import ScriptedController

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NO_NODE, NodeId
from headrace.broker.channels import controller_channel
from headrace.broker.channels.controller_channel import QuorumChannel
from headrace.broker.channels.controller_discovery import ControllerDiscovery, LeaderHint, parse_voters
from headrace.client.wire.connection import Disconnected, NoResponse, NotConnected
from headrace.client.wire.node_link import Address, LinkOptions, NodeLink
from headrace.protocol.compiler import codec
from headrace.protocol.headers import read_request_header, response_header
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.envelope import EnvelopeRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse

OPTIONS = LinkOptions(client_id="node-1")
HEARTBEAT = BrokerHeartbeatRequest(broker_id=1, broker_epoch=5)
ENVELOPE = EnvelopeRequest(request_data=b"x", request_principal=b"", client_host_address=b"\x7f\x00\x00\x01")


def make_channel(*controllers: ScriptedController, own: Any = None, timeout_s: float = 5.0) -> QuorumChannel:
    voters = {NodeId(number): one.address for number, one in enumerate(controllers, 2)}
    return QuorumChannel(
        NodeId(1),
        own,
        ControllerDiscovery(voters),
        lambda address: NodeLink(address, OPTIONS, random.Random(1)),
        random.Random(1),
        timeout_s,
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_channel, "ATTEMPT_S_MAX", 0.3)


def test_requests_follow_the_leader_and_stay_with_it() -> None:
    async def work() -> None:
        async with ScriptedController() as first, ScriptedController() as second:
            first.leads = False
            channel = make_channel(first, second)
            for _ in range(3):
                assert (await channel.request(HEARTBEAT)).error_code == ErrorCode.NONE
            assert (len(first.requests), len(second.requests)) == (1, 3)
            first.leads, second.leads = True, False
            await channel.request(HEARTBEAT)
            await channel.request(HEARTBEAT)
            assert (len(first.requests), len(second.requests)) == (3, 4)
            await channel.close()

    run(work())


def test_a_fetch_response_names_the_leader_and_its_endpoint() -> None:
    async def work() -> None:
        async with ScriptedController() as follower, ScriptedController() as leader:
            data = FetchResponse.PartitionData(
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=9, leader_epoch=3),
                aborted_transactions=None,
                records=b"",
            )
            follower.leads = False
            follower.refusal = lambda request: FetchResponse(
                responses=[FetchResponse.FetchableTopicResponse(partitions=[data])],
                node_endpoints=[FetchResponse.NodeEndpoint(node_id=9, host="127.0.0.1", port=leader.port)],
            )
            channel = make_channel(follower)
            await channel.request(FetchRequest())
            assert (len(follower.requests), len(leader.requests)) == (1, 1)
            await channel.close()

    run(work())


def test_a_controller_that_hangs_or_refuses_connections_is_left_for_another() -> None:
    async def work() -> None:
        gone = ScriptedController()
        async with gone:
            pass
        async with ScriptedController() as hanging, ScriptedController() as leader:
            hanging.hangs = True
            channel = make_channel(gone, hanging, leader)
            assert (await channel.request(HEARTBEAT)).error_code == ErrorCode.NONE
            assert len(hanging.requests) == 1 and len(leader.requests) == 1
            await channel.close()

    run(work())


def test_a_request_fails_at_the_deadline_with_the_last_reason() -> None:
    async def work() -> None:
        async with ScriptedController() as only:
            only.leads = False
            channel = make_channel(only, timeout_s=1.5)
            with pytest.raises(KafkaError, match="does not lead") as caught:
                await channel.request(HEARTBEAT)
            assert caught.value.code is ErrorCode.NOT_CONTROLLER and len(only.requests) > 2
            only.hangs = True
            with pytest.raises(NoResponse, match=str(only.port)):
                await channel.request(HEARTBEAT)
            await channel.close()

    run(work())


def test_an_envelope_is_repeated_only_if_it_was_certainly_not_carried_out() -> None:
    async def work() -> None:
        gone = ScriptedController()
        async with gone:
            pass
        async with ScriptedController() as follower, ScriptedController() as leader:
            follower.leads = False
            channel = make_channel(gone, follower, leader)
            await channel.request(ENVELOPE)
            assert (len(follower.requests), len(leader.requests)) == (1, 1)
            leader.closes = True
            with pytest.raises(Disconnected):
                await channel.request(ENVELOPE)
            assert (len(follower.requests), len(leader.requests)) == (1, 2)
            leader.closes, leader.hangs = False, True
            await channel.close()
            channel = make_channel(leader, timeout_s=1.5)
            with pytest.raises(NoResponse):
                await channel.request(ENVELOPE)
            assert len(leader.requests) == 3
            await channel.close()

    run(work())


def test_a_creation_of_topics_that_a_follower_refused_is_sent_to_the_leader() -> None:
    async def work() -> None:
        async with ScriptedController() as follower, ScriptedController() as leader:
            refused = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER)
            follower.leads = False
            follower.refusal = lambda request: CreateTopicsResponse(topics=[refused])
            channel = make_channel(follower, leader)
            request = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="t")])
            assert (await channel.request(request)).topics == []
            assert (len(follower.requests), len(leader.requests)) == (1, 1)
            await channel.close()

    run(work())


def test_a_long_poll_does_not_delay_other_requests() -> None:
    async def work() -> None:
        async with ScriptedController() as leader:
            channel = make_channel(leader)
            leader.hangs = True
            fetch = asyncio.create_task(channel.request(FetchRequest()))
            while not leader.requests:
                await asyncio.sleep(0.001)
            leader.hangs = False
            assert (await channel.request(HEARTBEAT)).error_code == ErrorCode.NONE
            assert not fetch.done()
            await fetch
            await channel.close()

    run(work())


class FakeOwnController:
    """A controller in the same process; `dispatcher` is the controller itself."""

    def __init__(self, leader: int) -> None:
        self.leader = NodeId(leader)
        self.is_alone = False
        self.handled = 0
        self.code = ErrorCode.NONE

    @property
    def dispatcher(self) -> Any:
        return self

    def address_of(self, node: NodeId) -> Address | None:
        return None

    def handle(self, peer: Any, frame: memoryview) -> Any:
        assert peer.authority.is_own_node
        self.handled += 1
        key, version, correlation, _, _ = read_request_header(frame)
        body = response_header(key, version, correlation)
        body += codec(BrokerHeartbeatResponse, version).encode(BrokerHeartbeatResponse(error_code=self.code))
        return [len(body).to_bytes(4, "big") + body]


def test_the_controller_in_the_same_process_is_asked_directly_while_it_leads() -> None:
    async def work() -> None:
        async with ScriptedController() as other:
            own = FakeOwnController(leader=1)
            channel = make_channel(other, own=own)
            await channel.request(HEARTBEAT)
            assert own.handled == 1 and other.requests == []
            own.leader = NodeId(2)
            await channel.request(HEARTBEAT)
            assert own.handled == 1 and len(other.requests) == 1
            own.leader = NO_NODE
            await channel.request(HEARTBEAT)
            assert own.handled == 1 and len(other.requests) == 2
            await channel.close()

    run(work())


def test_a_lone_controller_answers_for_itself_even_if_it_does_not_lead() -> None:
    async def work() -> None:
        own = FakeOwnController(leader=-1)
        own.is_alone = True
        own.code = ErrorCode.NOT_CONTROLLER
        assert (await make_channel(own=own).request(HEARTBEAT)).error_code == ErrorCode.NOT_CONTROLLER
        with pytest.raises(NotConnected, match=r"controller\.quorum\.voters"):
            await make_channel().request(HEARTBEAT)

    run(work())


A, B = Address("a", 1), Address("b", 2)


def test_discovery_ignores_hints_of_older_epochs_and_rotates_after_failures() -> None:
    discovery = ControllerDiscovery({NodeId(1): A, NodeId(2): B})
    assert discovery.target() == A
    discovery.learn(LeaderHint(NodeId(2), 5, None))
    discovery.learn(LeaderHint(NodeId(1), 4, None))
    assert discovery.target() == B
    seen = set()
    for _ in range(4):
        seen.add(discovery.target())
        discovery.failed(discovery.target())
    assert seen == {A, B}
    discovery.learn(LeaderHint(NodeId(7), 6, Address("c", 3)))
    assert discovery.target() == Address("c", 3)


def test_voters_are_parsed_with_ipv6_addresses() -> None:
    assert parse_voters(["1@host:9093", "2@[::1]:9094"]) == {1: ("host", 9093), 2: ("::1", 9094)}
