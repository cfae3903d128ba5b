"""Hostile clients: what they cost others, how much memory they can use, and what they can write into the log."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tools.prove.registry import WORK, check, rounds_or

BOMBS = 100
ABORTED_CONNECTIONS = 5_000


@check(
    "hostile-memory",
    "After 100 compression bombs and 5,000 connections aborted in the middle of a frame, with and without TLS and "
    "SASL, a node is within 50 MB of its initial memory",
)
def hostile_memory() -> str:
    from tools.prove.hostile.memory import GROWTH_MB_MAX, attack

    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=WORK) as directory:
        before_mb, after_mb = attack(Path(directory), BOMBS, ABORTED_CONNECTIONS)
    assert after_mb - before_mb <= GROWTH_MB_MAX, f"the node grew from {before_mb:.0f} to {after_mb:.0f} MB"
    return f"{before_mb:.0f} MB before, {after_mb:.0f} MB after {BOMBS} bombs and {ABORTED_CONNECTIONS:,} aborted connections"


@check(
    "log-lines",
    "Line breaks, terminal escapes and separators in any name that a client can send, in any API, cannot forge a "
    "line of the log or the audit log",
)
def log_lines() -> str:
    from tools.prove.hostile.log_lines import judge_lines, poison_node

    WORK.mkdir(exist_ok=True)
    figures = []
    for allow_everyone in (True, False):
        with tempfile.TemporaryDirectory(prefix="log-lines-", dir=WORK) as directory:
            sent, lines = poison_node(Path(directory), allow_everyone=allow_everyone)
        figures.append(
            f"{sent} requests {'allowed' if allow_everyone else 'denied'}, {judge_lines(lines)} lines name the poison"
        )
    return "; ".join(figures) + "; none is forged"


@check(
    "garbage-connections",
    "A thousand connections that send garbage and reconnect whenever they are closed cost a well-behaved client "
    "at most 10 % of its throughput; a thousand slow ones cost at most 16 KB each and are closed by "
    "connections.max.idle.ms",
)
def garbage_connections() -> str:
    from tools.prove.hostile.garbage import ROUNDS, Scale, judge, measure_slow_clients, measure_throughput

    scale = Scale(rounds=rounds_or(ROUNDS))
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="garbage-", dir=WORK) as directory:
        return judge(measure_throughput(Path(directory), scale), measure_slow_clients(Path(directory)))
