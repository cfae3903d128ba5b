"""The same requests to real Kafka and to us."""

from __future__ import annotations

import os
import random

from headrace.testing import peers
from headrace.testing.processes import LOOPBACK, NodeProcess
from tools.prove.differential.run import compare
from tools.prove.registry import WORK, NotRun, check, say

OPERATIONS = 10_000


@check(
    "differential",
    "10,000 produces, fetches and list-offsets, good and bad, are answered as real Kafka answers them: offsets, errors, timestamps, bytes",
)
def differential() -> str:
    reason = peers.available()
    if reason is not None:
        raise NotRun(reason)
    operations = int(os.environ.get("HEADRACE_OPERATIONS", OPERATIONS))
    seed = int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(1 << 32)))
    say(f"seed {seed}")
    kept = {"log.retention.ms": "-1"}  # timestamps are of any year, and the two would not sweep at the same moment
    with peers.KafkaPeer(kept) as kafka, NodeProcess(kept) as node:
        result = compare((LOOPBACK, kafka.port), (LOOPBACK, node.port), operations=operations, seed=seed, say=say)
    if result.differences:
        report = WORK / "differences.txt"
        report.write_text("\n\n".join(map(str, result.differences)) + "\n")
        raise AssertionError(f"{result.figure()}: see {report}; the first: {result.differences[0]}")
    return result.figure()
