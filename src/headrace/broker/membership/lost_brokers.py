"""Brokers that have just died, as clients that look for their next leader should see them.

A client whose leader dies requests metadata from another broker within milliseconds, before the controller can have elected a new
leader. librdkafka waits a second before it tries again. So a broker whose connection to the dead one was closed, too, holds the
response back until the metadata has changed, or for a moment.

A broker that was fenced is listed among the brokers for a few seconds more. When one disappears from the list together with a change
of its partitions' leaders, librdkafka first moves the partitions to no broker at all and looks for their leaders a second later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from headrace.metadata.image import Image
from headrace.metadata.loader import Changes

FENCED_LISTED_S = 3.0  # longer than clients wait between two requests for metadata when a leader is gone
SUSPECT_S = 0.5  # longer than it takes to fence a dead broker, shorter than any client's timeout


class LostBrokers:
    def __init__(self, image: Callable[[], Image], loop: asyncio.AbstractEventLoop) -> None:
        self._image = image
        self._loop = loop
        self._lost_s: dict[int, float] = {}  # when the connection to a broker was lost, by the event loop's time
        self._fenced_s: dict[int, float] = {}  # when a broker was fenced
        self._changed: asyncio.Future[None] | None = None

    def fenced_a_moment_ago(self) -> list[int]:
        """Return the ids of the brokers that are fenced but still listed."""
        now = self._loop.time()
        for node_id in [node_id for node_id, fenced_s in self._fenced_s.items() if now > fenced_s + FENCED_LISTED_S]:
            del self._fenced_s[node_id]
        return list(self._fenced_s)

    def note(self, node_id: int) -> None:
        """Record that the connection to a broker was lost."""
        broker = self._image().brokers.get(node_id)
        if broker is not None and not broker.fenced:
            self._lost_s[node_id] = self._loop.time()

    @property
    def has_suspects(self) -> bool:
        """Return whether any connection was lost a moment ago; this is cheap, for every request."""
        return bool(self._lost_s) and self._suspected_until(self._lost_s) > self._loop.time()

    def suspects_any(self, leaders: Collection[int]) -> bool:
        """Return whether one of the brokers is likely to be replaced as a leader soon."""
        return self._suspected_until(leaders) > self._loop.time()

    def _suspected_until(self, leaders: Collection[int]) -> float:
        return max((lost_s + SUSPECT_S for node_id, lost_s in self._lost_s.items() if node_id in leaders), default=0.0)

    async def settled(self, leaders: Collection[int]) -> None:
        """Wait until none of the brokers is suspected any more."""
        while (left_s := self._suspected_until(leaders) - self._loop.time()) > 0:
            if self._changed is None or self._changed.done():
                self._changed = self._loop.create_future()
            await asyncio.wait([self._changed], timeout=left_s)

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        """Suspect a broker no longer when the metadata says that it is dead, or that it has registered again."""
        for node_id in changes.brokers:
            was, now = old.brokers.get(node_id), new.brokers.get(node_id)
            self._fenced_s.pop(node_id, None)
            if was is not None and not was.fenced and now is not None and now.fenced:
                self._fenced_s[node_id] = self._loop.time()
        decided = [node_id for node_id in changes.brokers if self._lost_s.pop(node_id, None) is not None]
        if decided and self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
