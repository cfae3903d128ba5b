"""Misbehaving clients do not affect others."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tools.prove.registry import WORK, check


@check(
    "garbage-connections",
    "A thousand connections that send garbage and reconnect whenever they are closed cost a well-behaved client "
    "at most 10 % of its throughput; a thousand slow ones cost at most 16 KB each and are closed by "
    "connections.max.idle.ms",
)
def garbage_connections() -> str:
    from tools.prove.garbage import ROUNDS, Scale, judge, pester, trickle

    scale = Scale(rounds=int(os.environ.get("HEADRACE_ROUNDS", ROUNDS)))
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="garbage-", dir=WORK) as directory:
        return judge(pester(Path(directory), scale), trickle(Path(directory)))
