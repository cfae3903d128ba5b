"""The quorum-state file: the epoch and the vote, which a voter must never lose, in Kafka's JSON format."""

from __future__ import annotations

import json

from headrace.base.errors import CorruptData
from headrace.base.ids import NodeId
from headrace.raft.messages import ElectionState
from headrace.storage.files import Files, read_all, write_atomically

FILE_NAME = "quorum-state"
FILE_BYTES_MAX = 1 << 20
# Version 0 is the format of static voters (kraft.version 0); in version 1 voters have a directory id too.
DATA_VERSION = 0


class ElectionStore:
    def __init__(self, files: Files, directory: str, voters: frozenset[NodeId]) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._voters = voters

    def load(self) -> ElectionState:
        if not self._files.exists(self._path):
            return ElectionState()
        raw = read_all(self._files, self._path, FILE_BYTES_MAX)
        try:
            found = json.loads(raw)
            if found["data_version"] not in (0, 1):
                raise ValueError(f"data_version {found['data_version']}")
            epoch, leader, voted = (int(found[name]) for name in ("leaderEpoch", "leaderId", "votedId"))
            if epoch < 0:
                raise ValueError(f"leaderEpoch {epoch}")
        except (ValueError, KeyError, TypeError) as error:
            # A guess could lead to two votes in one epoch: an operator must act.
            raise CorruptData(f"{self._path} cannot be read ({error!r}); restore it, or format a new voter") from error
        return ElectionState(epoch, NodeId(leader), NodeId(voted))

    def save(self, state: ElectionState) -> None:
        """Write the state durably; call it in a thread, because it blocks for an fsync."""
        text = json.dumps(
            {
                "clusterId": "",
                "leaderId": state.leader,
                "leaderEpoch": state.epoch,
                "votedId": state.voted_for,
                "appliedOffset": 0,
                "currentVoters": [{"voterId": voter} for voter in sorted(self._voters)],
                "data_version": DATA_VERSION,
            },
            separators=(",", ":"),
        )
        write_atomically(self._files, self._path, text.encode())
