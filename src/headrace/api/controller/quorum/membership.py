"""Checks whom a request to the quorum is meant for, and tells its sender who leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC, NodeId
from headrace.quorum.controller_addresses import endpoint_for
from headrace.quorum.driver import QuorumDriver
from headrace.quorum.requests import EPOCH_MAX

T = TypeVar("T")


class LeaderEndpoint(NamedTuple):
    node_id: NodeId
    host: str
    port: int


class QuorumMembership:
    """The place of this replica in the quorum: its cluster, its id, and the leader that it knows."""

    def __init__(self, driver: QuorumDriver, cluster_id: str) -> None:
        self.driver = driver
        self._cluster_id = cluster_id

    def check_cluster(self, cluster_id: str | None) -> None:
        """Raise KafkaError INCONSISTENT_CLUSTER_ID if the sender belongs to another cluster."""
        if cluster_id is not None and cluster_id != self._cluster_id:
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)

    def check_receiver(self, voter_id: int) -> None:
        """Raise KafkaError INVALID_VOTER_KEY if the sender meant another voter; a negative id means any."""
        if voter_id >= 0 and voter_id != self.driver.raft.key.id:
            raise KafkaError(ErrorCode.INVALID_VOTER_KEY)

    def check_voter(self, node_id: int, epoch: int) -> None:
        """Raise KafkaError unless this can be a voter that acts in this epoch."""
        raft = self.driver.raft
        if node_id < 0 or not 0 <= epoch <= EPOCH_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if raft.kraft_version == 0 and raft.voters.get(NodeId(node_id)) is None:
            raise KafkaError(ErrorCode.INCONSISTENT_VOTER_SET)

    def leader_endpoints(self, listener: str) -> list[LeaderEndpoint]:
        """Return where the leader is reached by peers of this listener; nothing if that is unknown."""
        leader = self.driver.leader
        voter = self.driver.raft.voters.get(leader)
        endpoint = None if voter is None else endpoint_for(voter.endpoints, listener)
        return [] if endpoint is None else [LeaderEndpoint(leader, endpoint.host, endpoint.port)]


def only_partition(topics: Sequence[tuple[str, Sequence[T]]]) -> T:
    """Return the one partition of a request. Raise KafkaError INVALID_REQUEST unless it is that of the metadata log."""
    if len(topics) != 1 or len(topics[0][1]) != 1 or topics[0][0] != METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return topics[0][1][0]
