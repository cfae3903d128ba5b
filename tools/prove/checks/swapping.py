"""One data directory, used by two servers in turn."""

from __future__ import annotations

import random

from testkit.kafka_peer import available

from tools.prove.registry import NotRun, check

TURNS = 5


@check(
    "swap-the-binary",
    "Kafka opens a directory written by Headrace, Headrace opens it again after Kafka has written to it, and so "
    "on: every record, config and offset is present, and each ends the transactions that the other left open",
)
def swap_the_binary() -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove.swapping import swap

    return swap(TURNS, random.randrange(10**6))
