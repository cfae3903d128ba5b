"""All handlers of a group coordinator's shard."""

from __future__ import annotations

from headrace.coordinators.group.classic.handlers import CLASSIC_ROOM
from headrace.coordinators.group.consumer.handlers import CONSUMER_ROOM
from headrace.coordinators.group.offset_handlers import OFFSETS_ROOM
from headrace.coordinators.group.shard import Room

GROUP_ROOMS: tuple[Room, ...] = (OFFSETS_ROOM, CLASSIC_ROOM, CONSUMER_ROOM)
