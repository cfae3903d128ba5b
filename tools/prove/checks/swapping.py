"""One data directory, used by two servers in turn."""

from __future__ import annotations

import random

from testkit.kafka_peer import available

from tools.prove.registry import NotRun, check

TURNS = 5


@check(
    "swap-the-binary",
    "Kafka opens a directory that Headrace wrote, Headrace the one Kafka then wrote, and again: every record, config and offset is there, "
    "and what one left open of a transaction the other ends",
)
def swap_the_binary() -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove.swapping import swap

    return swap(TURNS, random.randrange(10**6))
