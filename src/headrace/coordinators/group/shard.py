"""The state machine of one partition of __consumer_offsets, which holds the groups whose ids hash to it.

The shard only routes requests, records and timers to handlers. Durable state changes in `apply` alone. State that is lost when the
coordinator moves (parked joins, session deadlines) is kept in the same tables, so that a failed decision undoes it too. Timers
define when something has to be checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from headrace.coordinators.group.classic.state import ClassicState
from headrace.coordinators.group.consumer.state import ConsumerState
from headrace.coordinators.group.offsets import OffsetsState
from headrace.coordinators.group.ownership import GroupOwner
from headrace.coordinators.group.records import AnyRecord
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.transactional_commits import apply_marker, apply_pending, is_pending
from headrace.metadata.image import Image
from headrace.protocol.declare import Struct
from headrace.statemachine.machine import Decision
from headrace.statemachine.transactional import MarkerRecord
from headrace.statemachine.undo import UndoLog

if TYPE_CHECKING:
    from random import Random

Tx = Decision[AnyRecord]
RequestHandler = Callable[["GroupShard", CoordinatorRequest, int, Tx], None]
Applier = Callable[["GroupShard", Any, Any], None]  # takes key and value; the value of a tombstone is None
TimerHandler = Callable[["GroupShard", Any, int, Tx], None]
LeadingHandler = Callable[["GroupShard", int, Tx], None]


class Handlers:
    """Handlers for one kind of state: requests by type, records by type of key, timers by their first item."""

    def __init__(
        self,
        requests: dict[type[Struct], RequestHandler] | None = None,
        appliers: dict[type[Struct], Applier] | None = None,
        timers: dict[str, TimerHandler] | None = None,
        on_leading: LeadingHandler | None = None,
    ) -> None:
        self.requests = requests or {}
        self.appliers = appliers or {}
        self.timers = timers or {}
        self.on_leading = on_leading


class GroupShard:
    def __init__(
        self, handlers: tuple[Handlers, ...], settings: GroupSettings, image: Callable[[], Image], random: Random
    ) -> None:
        self.undo = UndoLog()
        self.settings = settings
        self.image = image  # returns the newest image that this broker has seen
        self.random = random
        self.offsets = OffsetsState(self.undo)
        self.classic = ClassicState(self.undo)
        self.consumers = ConsumerState(self.undo, image)
        self.owners: tuple[GroupOwner, ...] = (self.classic, self.consumers)  # a group has at most one of them
        self._request_handlers: dict[type[Struct], RequestHandler] = {}
        self._appliers: dict[type[Struct], Applier] = {}
        self._timer_handlers: dict[str, TimerHandler] = {}
        self._leading_handlers: list[LeadingHandler] = []
        for part in handlers:
            self._request_handlers |= part.requests
            self._appliers |= part.appliers
            self._timer_handlers |= part.timers
            if part.on_leading is not None:
                self._leading_handlers.append(part.on_leading)

    def decide(self, request: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
        self._request_handlers[type(request.request)](self, request, now_ms, tx)

    def apply(self, record: AnyRecord, offset: int) -> None:
        if type(record) is MarkerRecord:
            apply_marker(self, record)
            return
        if record.producer is not None and is_pending(record):
            apply_pending(self, record, offset)
            return
        applier = self._appliers.get(type(record.key))
        if applier is not None:  # the topic may also contain records of unsupported types of groups
            applier(self, record.key, record.value)

    def on_timer(self, timer: Hashable, now_ms: int, tx: Tx) -> None:
        """Handle a timer: a tuple of its kind and the ids that it concerns."""
        assert isinstance(timer, tuple)
        self._timer_handlers[timer[0]](self, timer, now_ms, tx)

    def on_leading(self, now_ms: int, tx: Tx) -> None:
        for beginning in self._leading_handlers:
            beginning(self, now_ms, tx)
