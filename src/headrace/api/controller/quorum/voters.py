"""Changes of the voters: AddRaftVoter 0–1, RemoveRaftVoter 0 and UpdateRaftVoter 0 (KIP-853)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.api.controller.quorum.membership import QuorumMembership
from headrace.api.error_responses import refuse
from headrace.api.permissions import ALTER_CLUSTER, CLUSTER_ACTION
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, NodeId, Uuid
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from headrace.protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from headrace.quorum.voter_changes import VoterChanges
from headrace.raft.voters import Endpoint, ReplicaKey, Voter
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

LISTENERS_MAX = 100  # listeners of one voter
WAIT_S_MAX = 60.0  # how long a change may take to be committed, whatever the request allows
REMOVAL_S_MAX = 30.0  # RemoveRaftVoter has no timeout of its own


class _Listener(Protocol):
    name: str
    host: str
    port: int


class VotersApi:
    """Handles changes of the voters. `listener` is the one by which controllers reach each other: every voter needs it."""

    def __init__(self, membership: QuorumMembership, changes: VoterChanges, listener: str) -> None:
        self._membership = membership
        self._driver = membership.driver
        self._changes = changes
        self._listener = listener

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.ADD_RAFT_VOTER, (0, 1), self.add, ALTER_CLUSTER, refuse),
            Service(ApiKey.REMOVE_RAFT_VOTER, (0, 0), self.remove, ALTER_CLUSTER, refuse),
            Service(ApiKey.UPDATE_RAFT_VOTER, (0, 0), self.update, CLUSTER_ACTION),
        ]

    async def add(self, context: RequestContext, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        try:
            self._membership.check_cluster(request.cluster_id)
            replica = _replica(request.voter_id, request.voter_directory_id)
            voter = Voter(replica, self._endpoints(request.listeners))
            timeout_s = min(max(request.timeout_ms, 1) / 1000, WAIT_S_MAX)
            await self._changes.add(voter, timeout_s, wait=request.ack_when_committed)
        except KafkaError as error:
            return AddRaftVoterResponse(error_code=error.code, error_message=error.message)
        return AddRaftVoterResponse(error_message=None)

    async def remove(self, context: RequestContext, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
        try:
            self._membership.check_cluster(request.cluster_id)
            await self._changes.remove(_replica(request.voter_id, request.voter_directory_id), REMOVAL_S_MAX)
        except KafkaError as error:
            return RemoveRaftVoterResponse(error_code=error.code, error_message=error.message)
        return RemoveRaftVoterResponse(error_message=None)

    def update(self, context: RequestContext, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse:
        raft = self._driver.raft
        try:
            self._membership.check_cluster(request.cluster_id)
            if request.current_leader_epoch != raft.epoch:
                is_older = request.current_leader_epoch < raft.epoch
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH)
            versions = request.kraft_version_feature
            if not 0 <= versions.min_supported_version <= versions.max_supported_version:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            key = _replica(request.voter_id, request.voter_directory_id)
            endpoints = self._endpoints(request.listeners)
            self._changes.update(Voter(key, endpoints, versions.min_supported_version, versions.max_supported_version))
        except KafkaError as error:
            return UpdateRaftVoterResponse(error_code=error.code, current_leader=self._leader(context))
        return UpdateRaftVoterResponse(current_leader=self._leader(context))

    def _leader(self, context: RequestContext) -> UpdateRaftVoterResponse.CurrentLeader:
        found = UpdateRaftVoterResponse.CurrentLeader(
            leader_id=self._driver.leader, leader_epoch=self._driver.raft.epoch
        )
        for endpoint in self._membership.leader_endpoints(context.peer.listener):
            found.host, found.port = endpoint.host, endpoint.port
        return found

    def _endpoints(self, listeners: Sequence[_Listener]) -> tuple[Endpoint, ...]:
        """Return the endpoints. Raise KafkaError INVALID_REQUEST if the other controllers could not reach the voter."""
        if len(listeners) > LISTENERS_MAX or len({one.name for one in listeners}) != len(listeners):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {LISTENERS_MAX} listeners, or one of them twice")
        found = tuple(Endpoint(one.name, one.host, one.port) for one in listeners)
        if not any(one.listener == self._listener and one.host and one.port for one in found):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the voter has no listener {self._listener}")
        return found


def _replica(node_id: int, directory_id: Any) -> ReplicaKey:
    if node_id < 0 or directory_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a voter needs an id of at least 0 and a directory id")
    return ReplicaKey(NodeId(node_id), Uuid(directory_id))
