"""All handlers of a group coordinator's shard."""

from __future__ import annotations

from headrace.coordinators.group.classic.handlers import CLASSIC_HANDLERS
from headrace.coordinators.group.consumer.handlers import CONSUMER_HANDLERS
from headrace.coordinators.group.offset_handlers import OFFSETS_HANDLERS
from headrace.coordinators.group.shard import Handlers

GROUP_HANDLERS: tuple[Handlers, ...] = (OFFSETS_HANDLERS, CLASSIC_HANDLERS, CONSUMER_HANDLERS)
