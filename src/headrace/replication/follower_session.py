"""The follower's half of an incremental fetch session (KIP-227): what of its fetch positions the leader knows already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.base.ids import Uuid

INITIAL_EPOCH = 0
EPOCH_MAX = 0x7FFFFFFF

Key = tuple[Uuid, int]  # topic id and partition index


class Position(NamedTuple):
    """What a follower requests of one partition, in the fields of a Fetch request."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start: int
    high_watermark: int


class SessionRequest(NamedTuple):
    session_id: int
    epoch: int
    changed: dict[Key, Position]
    forgotten: list[Key]


class FollowerSession:
    """Partitions come and go without a new session; only an error, of the session or of the connection, requires one."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_EPOCH
        self._sent: dict[Key, Position] = {}

    def request(self, wanted: Mapping[Key, Position]) -> SessionRequest:
        """Return what to send, so that the leader serves exactly `wanted`."""
        if self._epoch == INITIAL_EPOCH:
            self._sent = dict(wanted)
            return SessionRequest(self._id, INITIAL_EPOCH, dict(wanted), [])
        changed = {key: position for key, position in wanted.items() if self._sent.get(key) != position}
        forgotten = [key for key in self._sent if key not in wanted]
        self._sent = dict(wanted)
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def succeeded(self, session_id: int) -> None:
        """Continue the session after a response; id 0 means that the leader keeps none."""
        if session_id == 0:
            self._id, self._epoch = 0, INITIAL_EPOCH
        else:
            self._id, self._epoch = session_id, 1 if self._epoch >= EPOCH_MAX else self._epoch + 1

    def failed(self) -> None:
        """Begin a new session with the next request, which also closes the old one."""
        self._epoch = INITIAL_EPOCH
