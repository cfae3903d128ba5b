"""Three controllers over loopback: one leads, the others are hot standbys, and one of them takes over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.node.controllers import Controllers


def test_one_of_three_controllers_leads_and_another_takes_over_within_two_seconds(tmp_path: Path) -> None:
    async def run() -> None:
        quorum = Controllers(tmp_path)
        await quorum.start()
        first = await quorum.until_leader()
        await quorum.write(20)
        await quorum.until_equal()
        logs = [quorum.batches(node_id) for node_id in quorum.nodes]
        assert logs[0] == logs[1] == logs[2]
        before = time.monotonic()
        await quorum.kill(first)
        second = await quorum.until_leader()
        assert time.monotonic() - before < 2 and second != first
        await quorum.write(20)
        await quorum.start(first)
        await quorum.until_equal()
        logs = [quorum.batches(node_id) for node_id in quorum.nodes]
        assert logs[0] == logs[1] == logs[2]
        await quorum.stop()

    asyncio.run(run())
