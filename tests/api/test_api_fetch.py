"""Parked fetches whose records a thread reads from the disk."""

from __future__ import annotations

import asyncio
from random import Random

from tests.api.leader_harness import LeaderHarness, batch, fetched

RUNS = 20
WAIT_MS = 100


def test_a_parked_fetch_responds_once_if_its_time_is_over_while_a_thread_reads_the_records() -> None:
    """Another attempt would replace what is being read, and the response would have no records."""
    for seed in range(RUNS):
        harness = LeaderHarness()
        harness.loop._random = Random(seed)
        harness.loop.slow_share = harness.files.uncached_share = 1.0
        traffic = harness.partitions.open[harness.names[0]].traffic
        waiting, _ = harness.send(harness.fetch_request(0, committed=False, max_wait_ms=WAIT_MS), 12)
        harness.run(asyncio.sleep(WAIT_MS / 1000 - 0.01))
        harness.send(harness.produce_request({0: batch(transactional=False)}, None), 12)
        seen = fetched(harness.run(asyncio.wait_for(waiting, 10)))
        assert len(seen.records or b"") > 0
        harness.run(asyncio.sleep(2))
        assert (traffic.fetches, traffic.bytes_out) == (2, len(seen.records or b""))
        assert harness.loop.unhandled() == []
        harness.close()
