"""Nothing acknowledged is lost when the process dies."""

from __future__ import annotations

import os
import random

from tools.prove.killing import rounds_of_killing
from tools.prove.registry import check, say

ROUNDS = 100


@check(
    "kill-nine",
    "100 rounds of kill -9 under load: nothing acknowledged lost, no CRC error, no offset used twice, no producer id handed out twice",
)
def kill_nine() -> str:
    rounds = int(os.environ.get("HEADRACE_ROUNDS", ROUNDS))
    seed = int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(1 << 32)))
    return rounds_of_killing(rounds, seed, say)
