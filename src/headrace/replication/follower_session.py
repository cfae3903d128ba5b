"""The follower's half of an incremental fetch session (KIP-227): what of its fetch positions the leader knows already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    """Partitions come and go without a new session; only an error, of the session or of the connection, requires one.

    A request costs what has changed since the last one, however many partitions there are.
    """

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_EPOCH
        self._sent: dict[Key, Position] = {}
        self._forgotten: dict[Key, None] = {}  # partitions that the leader must still be told to forget

    def __len__(self) -> int:
        """Return how many partitions the last request was about."""
        return len(self._sent)

    @property
    def is_new(self) -> bool:
        """Return whether the next request has to name all partitions."""
        return self._epoch == INITIAL_EPOCH

    def begin(self, wanted: Mapping[Key, Position]) -> SessionRequest | None:
        """Return the first request of a new session, for exactly these partitions; None if there are none."""
        self._epoch = INITIAL_EPOCH
        self._sent, self._forgotten = dict(wanted), {}
        if not wanted:
            return None
        return SessionRequest(self._id, INITIAL_EPOCH, dict(wanted), [])

    def proceed(self, touched: Iterable[Key], position_of: Callable[[Key], Position | None]) -> SessionRequest | None:
        """Return the next request of the session, given the partitions that may have changed; None if there are none to fetch.

        A partition whose position is None is not wanted, or no longer.
        """
        changed = {}
        for key in touched:
            position, sent = position_of(key), self._sent.get(key)
            if position == sent:
                continue
            if position is None:
                del self._sent[key]
                self._forgotten[key] = None
            else:
                self._forgotten.pop(key, None)
                self._sent[key] = changed[key] = position
        if not self._sent:
            return None  # the leader keeps the session and its last partitions until the next request
        forgotten, self._forgotten = list(self._forgotten), {}
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
