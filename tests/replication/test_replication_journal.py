"""The journal of a coordinator whose partition has followers: records are committed by the high watermark."""

from __future__ import annotations

import asyncio
from random import Random

from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock
from tests.replication.replication_samples import NODE, NOW_MS, make_files, make_partition

from headrace.metadata.image import Partition as PartitionState
from headrace.replication.journal import PartitionJournal
from headrace.replication.partition import FollowerFetch, Partition
from headrace.statemachine.journal import NotLeader

OTHER = 2


def replicated(loop: SimulatedLoop) -> Partition:
    partition = make_partition(make_files(), loop)
    partition.configure(2)
    partition.lead(PartitionState((NODE, OTHER), (NODE, OTHER), NODE, 1, 1), NOW_MS)
    return partition


def fetched(partition: Partition, offset: int) -> None:
    fetch = FollowerFetch(OTHER, -1, offset, 0, -1)
    partition.plan_replica_read(fetch, 1000, min_one=True)
    partition.record_fetch(fetch, NOW_MS)


def make_journal(partition: Partition, loop: SimulatedLoop) -> PartitionJournal[str]:
    return PartitionJournal(
        partition, lambda text: (text.encode(), b""), lambda key, value: str(key), FakeClock(NOW_MS, loop), loop
    )


def test_records_are_committed_when_the_followers_have_them() -> None:
    loop = SimulatedLoop(Random(1))

    async def main() -> None:
        partition = replicated(loop)
        journal = make_journal(partition, loop)
        committed: list[int] = []
        journal.on_committed(committed.append)
        assert journal.append(["a", "b"]) == 1
        await asyncio.sleep(0.01)
        assert committed == [] and journal.committed_offset() == -1
        fetched(partition, 2)
        await asyncio.sleep(0.01)
        assert committed == [1]
        journal.close()

    loop.run_until_complete(main())
    loop.close()


def test_a_new_term_begins_when_what_earlier_ones_wrote_is_committed() -> None:
    loop = SimulatedLoop(Random(1))

    async def main() -> None:
        partition = replicated(loop)
        make_journal(partition, loop).append(["a"])
        journal = make_journal(partition, loop)
        settling = asyncio.ensure_future(journal.settled())
        await asyncio.sleep(0.01)
        assert not settling.done()
        fetched(partition, 1)
        await settling
        journal.close()

    loop.run_until_complete(main())
    loop.close()


def test_the_loss_of_leadership_ends_the_wait_for_earlier_records() -> None:
    loop = SimulatedLoop(Random(1))

    async def main() -> None:
        partition = replicated(loop)
        journal = make_journal(partition, loop)
        journal.append(["a"])
        settling = asyncio.ensure_future(journal.settled())
        await asyncio.sleep(0.01)
        partition.follow(PartitionState((NODE, OTHER), (OTHER,), OTHER, 2, 2))
        result = await asyncio.gather(settling, return_exceptions=True)
        assert isinstance(result[0], NotLeader)

    loop.run_until_complete(main())
    loop.close()
