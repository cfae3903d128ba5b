"""What a controller asks of the leader about its own place among the voters. No I/O.

A voter describes itself whenever the log, or the leader of a static quorum, does not know its current directory and endpoints. A
controller that may join by itself (controller.quorum.auto.join.enable) asks to become a voter; if its disk was replaced, it first has
the voter removed that it was before.
"""

from __future__ import annotations

from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from headrace.raft.membership import DYNAMIC_KRAFT_VERSION
from headrace.raft.node import RaftNode
from headrace.raft.roles import Role
from headrace.raft.voters import Voter

JOIN_TIMEOUT_MS = 5_000

VoterRequest = AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest


class VoterUpkeep:
    """Decides the next request of one controller, whose cluster and present description are given."""

    def __init__(self, raft: RaftNode, cluster_id: str, *, may_join: bool) -> None:
        self._raft = raft
        self._cluster_id = cluster_id
        self._may_join = may_join
        self._described_epoch = -1  # in which the leader of a static quorum was sent a description

    def next_request(self, own: Voter) -> VoterRequest | None:
        """Return the request that is due, or None."""
        raft = self._raft
        if raft.role is not Role.FOLLOWER or not raft.has_joined or not own.endpoints:
            return None
        is_dynamic = raft.kraft_version >= DYNAMIC_KRAFT_VERSION
        voter = raft.voters.get(own.key.id)
        if raft.is_voter:
            is_known = voter == own if is_dynamic else self._described_epoch == raft.epoch
            return None if is_known else self._update(own)
        if not self._may_join or not is_dynamic:
            return None
        if voter is not None:
            return RemoveRaftVoterRequest(
                cluster_id=self._cluster_id, voter_id=voter.key.id, voter_directory_id=voter.key.directory
            )
        return self._add(own)

    def succeeded(self, request: VoterRequest) -> None:
        if isinstance(request, UpdateRaftVoterRequest):
            self._described_epoch = request.current_leader_epoch

    def _update(self, own: Voter) -> UpdateRaftVoterRequest:
        listener = UpdateRaftVoterRequest.Listener
        return UpdateRaftVoterRequest(
            cluster_id=self._cluster_id,
            current_leader_epoch=self._raft.epoch,
            voter_id=own.key.id,
            voter_directory_id=own.key.directory,
            listeners=[listener(name=name, host=host, port=port) for name, host, port in own.endpoints],
            kraft_version_feature=UpdateRaftVoterRequest.KRaftVersionFeature(
                min_supported_version=own.kraft_version_min, max_supported_version=own.kraft_version_max
            ),
        )

    def _add(self, own: Voter) -> AddRaftVoterRequest:
        listener = AddRaftVoterRequest.Listener
        return AddRaftVoterRequest(
            cluster_id=self._cluster_id,
            timeout_ms=JOIN_TIMEOUT_MS,
            voter_id=own.key.id,
            voter_directory_id=own.key.directory,
            listeners=[listener(name=name, host=host, port=port) for name, host, port in own.endpoints],
            ack_when_committed=False,  # the log shows it, and this replica may be needed to commit it
        )
