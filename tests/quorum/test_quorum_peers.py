"""Requests to other controllers: one of a kind in flight, dead nodes recognized, hostile responses refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from headrace.base.errors import ErrorCode
from headrace.base.ids import NO_NODE, NodeId
from headrace.client.wire.node_link import Address, LinkOptions
from headrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochResponse
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.vote import VoteResponse
from headrace.quorum import peers as peers_module
from headrace.quorum.controller_addresses import ControllerAddresses
from headrace.quorum.peers import LinkedPeers, Unanswered
from headrace.quorum.requests import EPOCH_MAX, BadResponse, Sender, decode
from headrace.raft import messages as raft
from headrace.raft.log_view import LogPoint
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from headrace.testing.processes import free_port

ONE, TWO = ReplicaKey(NodeId(1)), NodeId(2)
FETCH = raft.FetchRequest(ONE, 5, 10, 4)
VOTE = raft.VoteRequest(5, ONE, LogPoint(4, 10), pre_vote=True)
BEGIN = raft.BeginQuorumEpochRequest(5, ONE.id)


class State:
    voters = VoterSet.of_ids(1, 2, 3)
    high_watermark = 7


def make_peers(port: int) -> LinkedPeers:
    voters = VoterSet([Voter(ReplicaKey(TWO), (Endpoint("CONTROLLER", "127.0.0.1", port),))])
    return LinkedPeers(
        Sender(ONE, "cluster"),
        ControllerAddresses(lambda: voters, "CONTROLLER"),
        lambda: LinkOptions("test", connect_timeout_s=30, request_timeout_s=30),
        Random(1),
        asyncio.get_running_loop(),
    )


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(bounded())


def test_a_node_whose_port_is_closed_refuses() -> None:
    async def work() -> None:
        peers = make_peers(free_port())
        outcomes: list[Any] = []
        peers.send(TWO, FETCH, State(), outcomes.append)
        while not outcomes:
            await asyncio.sleep(0.005)
        assert isinstance(outcomes[0], Unanswered) and outcomes[0].is_refused
        assert "Connection refused" in peers.problems[TWO]
        peers.send(NodeId(3), FETCH, State(), outcomes.append)
        while len(outcomes) < 2:
            await asyncio.sleep(0.005)
        assert outcomes[1] == Unanswered("the address of node 3 is unknown")
        await peers.close(0)

    run(work)


def test_one_request_of_a_kind_is_in_flight_and_a_newer_one_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class SilentLink:
        requests: list[Any] = []

        def __init__(self, address: Address, *rest: Any) -> None:
            self.address = address

        async def request(self, message: Any) -> Any:
            self.requests.append(message)
            await asyncio.sleep(60)

        async def close(self) -> None: ...

    async def work() -> None:
        monkeypatch.setattr(peers_module, "NodeLink", SilentLink)
        peers = make_peers(1)
        outcomes: list[Any] = []
        for request in (FETCH, FETCH, VOTE, FETCH):
            peers.send(TWO, request, State(), outcomes.append)
            await asyncio.sleep(0)
        assert len(SilentLink.requests) == 2
        peers.send(TWO, raft.FetchRequest(ONE, 6, 10, 4), State(), outcomes.append)
        await asyncio.sleep(0.01)
        assert len(SilentLink.requests) == 3 and len(peers._in_flight) == 2
        await peers.close(0)
        assert outcomes == [] and not peers._in_flight

    run(work)


def vote_response(**fields: Any) -> VoteResponse:
    data = VoteResponse.PartitionData(**{"leader_epoch": 5, "leader_id": -1, **fields})
    return VoteResponse(topics=[VoteResponse.TopicData(partitions=[data])])


def fetch_response(**fields: Any) -> FetchResponse:
    leader = FetchResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
    data = FetchResponse.PartitionData(**{"current_leader": leader, **fields})
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[data])])


def test_responses_are_translated() -> None:
    assert decode(vote_response(vote_granted=True), VOTE, TWO) == raft.VoteResponse(TWO, 5, NO_NODE, True, True)
    refused = decode(vote_response(vote_granted=True, error_code=ErrorCode.FENCED_LEADER_EPOCH), VOTE, TWO)
    assert isinstance(refused, raft.VoteResponse) and not refused.granted
    snapshot = FetchResponse.SnapshotId(end_offset=9, epoch=3)
    assert decode(fetch_response(snapshot_id=snapshot, high_watermark=8), FETCH, TWO) == raft.FetchResponse(
        TWO, 5, TWO, 10, 8, snapshot=LogPoint(3, 9)
    )


@pytest.mark.parametrize(
    ("response", "request_"),
    [
        (VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID), VOTE),
        (VoteResponse(), VOTE),
        (vote_response(leader_epoch=-1), VOTE),
        (vote_response(leader_epoch=EPOCH_MAX + 1), VOTE),
        (vote_response(), FETCH),
        (fetch_response(), VOTE),
        (FetchResponse(), FETCH),
        (BeginQuorumEpochResponse(), BEGIN),
    ],
)
def test_a_response_that_cannot_be_meant_is_refused(response: Any, request_: raft.Request) -> None:
    with pytest.raises(BadResponse):
        decode(response, request_, TWO)
