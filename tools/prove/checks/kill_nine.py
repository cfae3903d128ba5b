"""Nothing acknowledged is lost when the process dies."""

from __future__ import annotations

import os
import random

from tools.prove.killing import rounds_of_killing
from tools.prove.registry import check, say

ROUNDS = 100


@check(
    "kill-nine",
    "In 100 rounds of kill -9 under load, no acknowledged record is lost, no CRC is wrong, and no offset or "
    "producer id is assigned twice",
)
def kill_nine() -> str:
    rounds = int(os.environ.get("HEADRACE_ROUNDS", ROUNDS))
    seed = int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(1 << 32)))
    return rounds_of_killing(rounds, seed, say)
