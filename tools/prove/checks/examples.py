"""The example programs with consumers."""

from __future__ import annotations

from headrace.testing.processes import NodeProcess
from tools.prove.examples import RECORDS, at_least_once, at_most_once, kill_a_consumer
from tools.prove.registry import check, print_progress


@check(
    "examples-of-consumers",
    "The consumer examples work as described: when one is killed, the others take over its partition and every "
    "record is read; after a crash, work done before the commit is repeated but never lost, and work done after "
    "the commit is lost but never repeated",
)
def examples_of_consumers() -> str:
    with NodeProcess() as node:
        print_progress("kill_a_consumer.py")
        takeover = kill_a_consumer(node.bootstrap)
        print_progress("at_least_once.py and at_most_once.py")
        least, most = at_least_once(node.bootstrap), at_most_once(node.bootstrap)
        assert node.terminate() == 0, node.log_text()
    return (
        f"partition {takeover.orphan} taken over, {takeover.read} of {RECORDS} records read; at least once: {len(least.twice)} order "
        f"done twice, 0 lost; at most once: {len(most.lost)} order lost, 0 done twice"
    )
