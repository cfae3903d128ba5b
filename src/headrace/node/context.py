"""What all parts of a node share."""

from __future__ import annotations

import asyncio
from random import Random

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.base.metrics import Metrics
from headrace.node.configuration.settings import Settings


class NodeContext(Struct, frozen=True):
    """The settings, identity and environment of one node, passed to both of its roles."""

    settings: Settings
    cluster_id: str
    clock: Clock
    random: Random
    loop: asyncio.AbstractEventLoop
    metrics: Metrics
