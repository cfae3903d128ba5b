"""Requests to a group coordinator's shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.protocol.declare import Struct


def _everything(topic: str) -> bool:
    return True


class CoordinatorRequest(NamedTuple):
    """A coordinator request with its caller's identity and permissions."""

    request: Struct
    version: int
    client_id: str = ""
    client_host: str = ""  # address with a leading slash, as Java prints it
    allowed: Callable[[str], bool] = _everything  # whether the caller may DESCRIBE this topic
