"""The demo on several brokers, each of which is killed once while it runs; its own check of the results must pass."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from headrace.demo.supervisor import node_name
from tools.prove.cluster.in_sync import wait_until_in_sync
from tools.prove.pipelines.demo_kills import PROGRESS_S_MAX, RIGHT, Demo

IN_SYNC_S_MAX = 90.0
END_S_MAX = 600.0
POLL_S = 0.1


def demo_on_a_cluster(events: int, brokers: int, print_progress: Callable[[str], None]) -> str:
    """Run the demo to its end and return a summary. Raise AssertionError if its results are not right."""
    with tempfile.TemporaryDirectory(prefix="demo-cluster-") as folder:
        demo = Demo(Path(folder), brokers)
        started = time.monotonic()
        try:
            demo.start("--events", str(events))
            for number in range(1, brokers + 1):
                _wait_for_a_batch(demo)
                wait_until_in_sync(demo.bootstrap, IN_SYNC_S_MAX)
                assert demo.kill(node_name(number, brokers)), f"broker {number} does not run: {demo.log_end()}"
                print_progress(f"the demo: broker {number} is killed after {demo.batches()} batches")
                _wait_for_another(demo, number, brokers)
            _wait_for_end(demo)
            assert RIGHT in demo.output(), demo.log_end()
            tracebacks = [line for line in demo.output().splitlines() if "Traceback" in line]
            assert not tracebacks, f"{len(tracebacks)} tracebacks: {demo.log_end()}"
        finally:
            demo.close()
    seconds = time.monotonic() - started
    return f"the demo: {events} events, each of {brokers} brokers killed once, all results once, in {seconds:.0f} s"


def _wait_for_a_batch(demo: Demo) -> None:
    """Wait until the queries have completed another batch."""
    before, deadline = demo.batches(), time.monotonic() + PROGRESS_S_MAX
    while demo.batches() <= before:
        assert demo.code is None, f"the demo exited with {demo.code} before all brokers were killed: {demo.log_end()}"
        assert time.monotonic() < deadline, f"no batch was completed within {PROGRESS_S_MAX:.0f} s: {demo.log_end()}"
        time.sleep(POLL_S)


def _wait_for_another(demo: Demo, number: int, brokers: int) -> None:
    """Wait until the demo has restarted a broker that was killed."""
    deadline = time.monotonic() + PROGRESS_S_MAX
    while node_name(number, brokers) not in demo.register.left():
        assert time.monotonic() < deadline, f"broker {number} was not restarted: {demo.log_end()}"
        time.sleep(POLL_S)


def _wait_for_end(demo: Demo) -> None:
    deadline = time.monotonic() + END_S_MAX
    while demo.code is None:
        assert time.monotonic() < deadline, f"the demo did not end within {END_S_MAX:.0f} s: {demo.log_end()}"
        time.sleep(POLL_S)
    assert demo.code == 0, f"the demo exited with {demo.code}: {demo.log_end()}"
