"""A request as a shard is asked it, and how one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.protocol.declare import Struct


def _everything(topic: str) -> bool:
    return True


class Asked(NamedTuple):
    request: Struct
    version: int
    client_id: str = ""
    client_host: str = ""  # with the slash before the address that Java prints
    allowed: Callable[[str], bool] = _everything  # whether the asker may DESCRIBE this topic
