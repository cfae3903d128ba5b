"""Hostile clients: what they can take of a node's memory, and what they can write into its log."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tools.prove.registry import WORK, check

BOMBS = 100
ABORTED_CONNECTIONS = 5_000


@check(
    "hostile-memory",
    "100 compression bombs and 5,000 connections aborted in the middle of a frame, with and without TLS and SASL, leave a node within"
    " 50 MB of the memory it started with",
)
def hostile_memory() -> str:
    from tools.prove.hostile_memory import GROWTH_MB_MAX, attack

    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=WORK) as directory:
        before_mb, after_mb = attack(Path(directory), BOMBS, ABORTED_CONNECTIONS)
    assert after_mb - before_mb <= GROWTH_MB_MAX, f"the node grew from {before_mb:.0f} to {after_mb:.0f} MB"
    return f"{before_mb:.0f} MB before, {after_mb:.0f} MB after {BOMBS} bombs and {ABORTED_CONNECTIONS:,} aborted connections"
