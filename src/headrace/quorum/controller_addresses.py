"""Where the replicas of the metadata log are reached: what responses say, the voters in the log, and the bootstrap servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.ids import NodeId
from headrace.client.wire.node_link import Address
from headrace.raft.voters import Endpoint, VoterSet

LEARNED_MAX = 100  # nodes whose address was learned from responses
PORT_MAX = 65535
_FIRST_BOOTSTRAP_ID = -2  # -1 means no node


class ControllerAddresses:
    """Finds the address of a node.

    A response that names the leader also has its address, which may be newer than the log's: it counts until it fails. Bootstrap
    servers have addresses but no known ids; `bootstrap_ids` are stand-ins for these.
    """

    def __init__(self, voters: Callable[[], VoterSet], listener: str, bootstrap: Sequence[Address] = ()) -> None:
        self._voters = voters
        self._listener = listener
        self._bootstrap = {NodeId(_FIRST_BOOTSTRAP_ID - number): address for number, address in enumerate(bootstrap)}
        self._learned: dict[NodeId, Address] = {}

    @property
    def bootstrap_ids(self) -> tuple[NodeId, ...]:
        return tuple(self._bootstrap)

    def of(self, node_id: NodeId) -> Address | None:
        """Return the address of a node, or None if it is unknown."""
        return self._learned.get(node_id) or self._bootstrap.get(node_id) or self._of_voter(node_id)

    def _of_voter(self, node_id: NodeId) -> Address | None:
        voter = self._voters().get(node_id)
        endpoint = None if voter is None else endpoint_for(voter.endpoints, self._listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def learn(self, response: Any) -> None:
        """Remember the addresses in a response between replicas of the metadata log."""
        for node in response.node_endpoints:
            if node.node_id < 0 or not node.host or not 0 < node.port <= PORT_MAX:
                continue
            node_id, address = NodeId(node.node_id), Address(node.host, node.port)
            if address != self._of_voter(node_id) and (node_id in self._learned or len(self._learned) < LEARNED_MAX):
                self._learned[node_id] = address

    def failed(self, node_id: NodeId) -> None:
        """Forget what responses said about a node that could not be reached."""
        self._learned.pop(node_id, None)


def endpoint_for(endpoints: Sequence[Endpoint], listener: str) -> Endpoint | None:
    """Return the endpoint of this listener, or else the first one."""
    return next((one for one in endpoints if one.listener == listener), endpoints[0] if endpoints else None)
