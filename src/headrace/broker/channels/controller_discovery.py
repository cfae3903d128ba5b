"""Finds the active controller: what responses say about the leader, and otherwise each known controller in turn. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.base.errors import ConfigError, ErrorCode
from headrace.base.ids import NO_NODE, NodeId
from headrace.client.wire.node_link import Address
from headrace.client.wire.opening import addresses
from headrace.protocol.messages.create_topics import CreateTopicsResponse
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotResponse

LEARNED_MAX = 100  # controllers whose address was learned from responses
PORT_MAX = 65535
# Codes of a controller that does not lead: it has not carried out the request.
NOT_LEADING = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})


class LeaderHint(NamedTuple):
    """The leader of the metadata quorum, as a response names it; `address` is None if the response has no endpoint."""

    leader: NodeId
    epoch: int
    address: Address | None


def refusal_of(response: Any) -> ErrorCode | None:
    """Return the code of a response from a controller that does not lead, or None if the leader has responded."""
    if isinstance(response, CreateTopicsResponse):
        codes = [topic.error_code for topic in response.topics]
    else:
        codes = [response.error_code, *(data.error_code for data in _partitions(response))]
    return next((ErrorCode(code) for code in codes if code in NOT_LEADING), None)


def _partitions(response: Any) -> Sequence[Any]:
    """Return the data of each partition in a response to a fetch of the metadata log, nothing for other responses."""
    if isinstance(response, FetchResponse):
        return [data for topic in response.responses for data in topic.partitions]
    if isinstance(response, FetchSnapshotResponse):
        return [data for topic in response.topics for data in topic.partitions]
    return ()


def hint_of(response: Any) -> LeaderHint | None:
    """Return the leader that the response to a fetch of the metadata log names, or None."""
    leader = next((data.current_leader for data in _partitions(response) if data.current_leader.leader_id >= 0), None)
    if leader is None:
        return None
    address = next(
        (
            Address(node.host, node.port)
            for node in response.node_endpoints
            if node.node_id == leader.leader_id and node.host and 0 < node.port <= PORT_MAX
        ),
        None,
    )
    return LeaderHint(NodeId(leader.leader_id), leader.leader_epoch, address)


def parse_voters(voters: Sequence[str]) -> dict[NodeId, Address]:
    """Parse controller.quorum.voters: id@host:port. Raise ConfigError if one is not of that form."""
    found: dict[NodeId, Address] = {}
    for voter in voters:
        number, at, address = voter.partition("@")
        if not at or not number.isascii() or not number.isdigit():
            raise ConfigError(f"controller.quorum.voters: {voter!r} is not of the form id@host:port")
        found[NodeId(int(number))] = Address(*addresses(address, "controller.quorum.voters")[0])
    return found


class ControllerDiscovery:
    """Chooses the controller for the next attempt.

    `voters` are the controllers of a static quorum, `bootstrap` the first addresses of a dynamic one. The address that answered last
    is kept until it fails. After a failure the others are tried in turn, so that a wrong hint delays a request but never blocks it.
    """

    def __init__(self, voters: Mapping[NodeId, Address], bootstrap: Sequence[Address] = ()) -> None:
        self._voters = dict(voters)
        self._configured = list(dict.fromkeys([*voters.values(), *bootstrap]))
        self._learned: dict[NodeId, Address] = {}
        self._turn = 0  # counts failures, to try each controller in turn
        self._leader: Address | None = None
        self._leader_id = NO_NODE
        self._epoch = -1

    @property
    def knows_others(self) -> bool:
        """Return whether there is any controller that can be reached over the network."""
        return bool(self._configured or self._learned)

    def target(self) -> Address:
        """Return the leader if it is known, otherwise the next controller to try; there must be one."""
        return self._leader or self._next()

    def _next(self) -> Address:
        candidates = list(dict.fromkeys([*self._configured, *self._learned.values()]))
        return candidates[self._turn % len(candidates)]

    def address_of(self, node: NodeId) -> Address | None:
        return self._learned.get(node) or self._voters.get(node)

    def learn(self, hint: LeaderHint) -> None:
        """Use the leader that a response names, unless a newer one is known."""
        if hint.epoch < self._epoch:
            return
        if hint.address is not None and (hint.leader in self._learned or len(self._learned) < LEARNED_MAX):
            self._learned[hint.leader] = hint.address
        address = self.address_of(hint.leader)
        if address is not None and (hint.epoch > self._epoch or self._leader is None):
            self._leader, self._leader_id, self._epoch = address, hint.leader, hint.epoch

    def prefer(self, node: NodeId, address: Address | None = None) -> None:
        """Use the leader that this node's own raft names, if its address is known and it did not just fail."""
        if address is not None and address != self.address_of(node) and len(self._learned) < LEARNED_MAX:
            self._learned[node] = address
        address = address or self.address_of(node)
        if address is not None and node != self._leader_id:
            self._leader, self._leader_id = address, node

    def succeeded(self, address: Address) -> None:
        self._leader = address

    def failed(self, address: Address) -> None:
        """Forget the leader if it is at this address, and try another controller next."""
        if self._next() == address:
            self._turn += 1
        if self._leader == address:
            self._leader = None
