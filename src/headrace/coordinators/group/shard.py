"""The state machine of one partition of __consumer_offsets, which holds the groups whose ids hash to it.

The shard only routes requests, records and timers to handlers. Durable state changes in `apply` alone. State that is lost when the
coordinator moves (parked joins, session deadlines) is kept in the same tables, so that a failed decision undoes it too. Timers say
when something has to be checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from headrace.coordinators.group.classic.state import ClassicState
from headrace.coordinators.group.consumer.state import ConsumerState
from headrace.coordinators.group.offsets import OffsetsState
from headrace.coordinators.group.ownership import GroupOwner
from headrace.coordinators.group.records import AnyRecord
from headrace.coordinators.group.request import Asked
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
Verb = Callable[["GroupShard", Asked, int, Tx], None]
Applier = Callable[["GroupShard", Any, Any], None]  # takes key and value; the value of a tombstone is None
Alarm = Callable[["GroupShard", Any, int, Tx], None]
Beginning = Callable[["GroupShard", int, Tx], None]


class Room:
    """Handlers for one kind of state: requests by type, records by type of key, timers by their first item."""

    def __init__(
        self,
        verbs: dict[type[Struct], Verb] | None = None,
        appliers: dict[type[Struct], Applier] | None = None,
        alarms: dict[str, Alarm] | None = None,
        on_leading: Beginning | None = None,
    ) -> None:
        self.verbs = verbs or {}
        self.appliers = appliers or {}
        self.alarms = alarms or {}
        self.on_leading = on_leading


class GroupShard:
    def __init__(
        self, rooms: tuple[Room, ...], settings: GroupSettings, image: Callable[[], Image], chance: Random
    ) -> None:
        self.undo = UndoLog()
        self.settings = settings
        self.image = image  # returns the newest image that this broker has seen
        self.chance = chance
        self.offsets = OffsetsState(self.undo)
        self.classic = ClassicState(self.undo)
        self.consumers = ConsumerState(self.undo, image)
        self.owners: tuple[GroupOwner, ...] = (self.classic, self.consumers)  # a group has at most one of them
        self._verbs: dict[type[Struct], Verb] = {}
        self._appliers: dict[type[Struct], Applier] = {}
        self._alarms: dict[str, Alarm] = {}
        self._beginnings: list[Beginning] = []
        for room in rooms:
            self._verbs |= room.verbs
            self._appliers |= room.appliers
            self._alarms |= room.alarms
            if room.on_leading is not None:
                self._beginnings.append(room.on_leading)

    def decide(self, request: Asked, now_ms: int, tx: Tx) -> None:
        self._verbs[type(request.request)](self, request, now_ms, tx)

    def apply(self, record: AnyRecord, offset: int) -> None:
        if type(record) is MarkerRecord:
            apply_marker(self, record)
            return
        if record.producer is not None and is_pending(record):
            apply_pending(self, record, offset)
            return
        applier = self._appliers.get(type(record.key))
        if applier is not None:  # the topic may also hold records of unsupported types of groups
            applier(self, record.key, record.value)

    def on_timer(self, timer: Hashable, now_ms: int, tx: Tx) -> None:
        """Handle a timer: a tuple of its kind and the ids that it concerns."""
        assert isinstance(timer, tuple)
        self._alarms[timer[0]](self, timer, now_ms, tx)

    def on_leading(self, now_ms: int, tx: Tx) -> None:
        for beginning in self._beginnings:
            beginning(self, now_ms, tx)
