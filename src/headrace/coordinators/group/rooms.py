"""All handlers of a group coordinator's shard."""

from __future__ import annotations

from headrace.coordinators.group.classic.room import CLASSIC_ROOM
from headrace.coordinators.group.consumer.room import CONSUMER_ROOM
from headrace.coordinators.group.offsets_room import OFFSETS_ROOM
from headrace.coordinators.group.shard import Room

GROUP_ROOMS: tuple[Room, ...] = (OFFSETS_ROOM, CLASSIC_ROOM, CONSUMER_ROOM)
