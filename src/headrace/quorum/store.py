"""The quorum-state file: the epoch and the vote, which a voter must never lose, in Kafka's JSON format."""

from __future__ import annotations

import json
from collections.abc import Iterable

from headrace.base.errors import CorruptData
from headrace.base.ids import NO_NODE, ZERO_UUID, NodeId, uuid_from_text, uuid_text
from headrace.quorum.snapshots import SnapshotId, len_of
from headrace.raft.effects import ElectionState
from headrace.raft.voters import ReplicaKey
from headrace.storage.files import Files, read_all, write_atomically
from headrace.storage.names import LOG_SUFFIX

FILE_NAME = "quorum-state"
FILE_BYTES_MAX = 1 << 20
STATIC_VERSION, DYNAMIC_VERSION = 0, 1  # formats of kraft.version 0, with the voters, and 1, with directory ids


class ElectionStore:
    """Loads and saves the election state of one voter.

    `voters` are the static voters that version 0 of the format lists. Like Kafka, version 0 leaves the cluster id empty.
    """

    def __init__(self, files: Files, directory: str, voters: Iterable[NodeId]) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._voters = sorted(voters)

    def load_static_voters(self) -> list[NodeId]:
        """Return the static voters when the state was saved; none if there were none, or the file cannot be read."""
        try:
            found = json.loads(read_all(self._files, self._path, FILE_BYTES_MAX))
            return [NodeId(int(voter["voterId"])) for voter in found.get("currentVoters", [])]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []

    def load(self) -> ElectionState:
        """Return the state of the last run. Raise CorruptData if it was lost or cannot be read.

        A new node saves its state before it has any record, so that records without a state mean a lost vote.
        """
        if not self._files.exists(self._path):
            if self._has_records():
                raise CorruptData(
                    f"{self._path} is missing, and with it the last vote of this node: restore it, or format a new voter"
                )
            self.save(ElectionState())
            return ElectionState()
        raw = read_all(self._files, self._path, FILE_BYTES_MAX)
        try:
            found = json.loads(raw)
            version = found["data_version"]
            if version not in (STATIC_VERSION, DYNAMIC_VERSION):
                raise ValueError(f"data_version {version}")
            epoch, leader, voted = (int(found[name]) for name in ("leaderEpoch", "leaderId", "votedId"))
            if epoch < 0 or leader < NO_NODE or voted < NO_NODE:
                raise ValueError(f"leaderEpoch {epoch}, leaderId {leader}, votedId {voted}")
            directory = uuid_from_text(found["votedDirectoryId"]) if version == DYNAMIC_VERSION else ZERO_UUID
        except (ValueError, KeyError, TypeError) as error:
            # A guess could lead to two votes in one epoch: an operator must act.
            raise CorruptData(f"{self._path} cannot be read ({error!r}); restore it, or format a new voter") from error
        voted_for = ReplicaKey(NodeId(voted), directory) if voted >= 0 else None
        return ElectionState(epoch, NodeId(leader), voted_for)

    def _has_records(self) -> bool:
        directory = self._path.removesuffix(f"/{FILE_NAME}")
        for name in self._files.list_dir(directory) if self._files.exists(directory) else ():
            snapshot = SnapshotId.parse(name)
            if snapshot is not None and snapshot.end_offset > 0:
                return True
            if name.endswith(LOG_SUFFIX) and len_of(self._files, f"{directory}/{name}") > 0:
                return True
        return False

    def save(self, state: ElectionState, kraft_version: int = 0) -> None:
        """Write the state durably, in the format of this kraft.version; call it in a thread, because it blocks for an fsync."""
        voted = ReplicaKey(NO_NODE) if state.voted_for is None else state.voted_for
        fields: dict[str, object] = {"leaderId": state.leader, "leaderEpoch": state.epoch, "votedId": voted.id}
        version = DYNAMIC_VERSION if kraft_version else STATIC_VERSION
        if version == STATIC_VERSION:
            voters = [{"voterId": voter} for voter in self._voters]
            fields = {"clusterId": "", **fields, "appliedOffset": 0, "currentVoters": voters}
        else:
            fields["votedDirectoryId"] = uuid_text(voted.directory)
        text = json.dumps({**fields, "data_version": version}, separators=(",", ":"))
        write_atomically(self._files, self._path, text.encode())
