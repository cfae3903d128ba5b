"""Transactions in every state, made on both servers by clients before and since transaction version 2.

They are committed, aborted, open, prepared, timed out and hanging.
"""

from __future__ import annotations

import asyncio

from headrace.base.ids import TopicPartition
from headrace.client.admin.transactions import list_transactions
from headrace.client.wire.cluster import Cluster
from tools.prove.transactions.scripted_producers import ScriptedProducer, run_on

SHORT_MS = 1000
LONG_MS = 900_000  # the longest allowed timeout
LONG_AGO_MS = 1_700_000_000_000
UNASSIGNED_ID = 4_000_000  # a producer id that was never assigned
SETTLED_S_MAX = 30.0
ACCOUNTS = [TopicPartition("accounts", index) for index in range(3)]
AUDIT = TopicPartition("audit", 0)


class TransactionScenario:
    """Sends the same requests in the same order on each server, so that ids, epochs, offsets and records are equal."""

    def __init__(self) -> None:
        self._open: dict[str, ScriptedProducer] = {}

    def run(self, bootstrap: str) -> str:
        run_on(bootstrap, self._run)
        return ""

    async def _run(self, cluster: Cluster) -> None:
        for version, age in ((1, "old"), (2, "new")):
            await self._run_finished(cluster, version, age)
            await self._run_unfinished(cluster, version, age)
        prepared = ScriptedProducer("prepared", two_phase=True)
        await prepared.init(cluster)
        await prepared.write(cluster, AUDIT, [b"prepared"])
        await settle(cluster)

    async def _run_finished(self, cluster: Cluster, version: int, age: str) -> None:
        for end in (True, False):
            one = await _start(cluster, f"{age}-{'commit' if end else 'abort'}", version)
            await one.write(cluster, ACCOUNTS[0], [b"a", b"b"])
            await one.write(cluster, ACCOUNTS[1], [b"c"])
            await one.end(cluster, commit=end)
            await one.end(cluster, commit=end) if version < 2 else None  # succeeds without effect
        with_offsets = await _start(cluster, f"{age}-offsets", version)
        for offset, end in ((4, True), (5, False)):
            await with_offsets.write(cluster, AUDIT, [b"%d" % offset])
            await with_offsets.send_offsets(cluster, "ledger", {ACCOUNTS[0]: offset, ACCOUNTS[1]: offset})
            await with_offsets.end(cluster, commit=end)
        restarted = await _start(cluster, f"{age}-restarted", version)
        await restarted.write(cluster, ACCOUNTS[1], [b"lost"])
        await restarted.init(cluster)
        if version >= 2:
            await (await _start(cluster, f"{age}-nothing", version)).end(cluster, commit=False)

    async def _run_unfinished(self, cluster: Cluster, version: int, age: str) -> None:
        await _start(cluster, f"{age}-fresh", version)
        impatient = await _start(cluster, f"{age}-impatient", version, SHORT_MS)
        await impatient.write(cluster, ACCOUNTS[1], [b"too late"])
        await settle(cluster, impatient.transactional_id)
        for name in ("open", "continuing"):
            one = self._open[f"{age}-{name}"] = await _start(cluster, f"{age}-{name}", version)
            await one.write(cluster, ACCOUNTS[2], [b"undecided"])
            await one.write(cluster, ACCOUNTS[0], [b"undecided"])
        await one.send_offsets(cluster, "undecided", {AUDIT: 1})

    def leave_hanging(self, bootstrap: str) -> str:
        run_on(bootstrap, self._leave_hanging)
        return ""

    async def _leave_hanging(self, cluster: Cluster) -> None:
        known = await _start(cluster, "old-hanging", 1)
        await known.write_unadded(cluster, ACCOUNTS[2], [b"for ever"], LONG_AGO_MS)
        unknown = ScriptedProducer("unknown-hanging", 1, producer_id=UNASSIGNED_ID, epoch=3)
        await unknown.write_unadded(cluster, AUDIT, [b"for ever"], LONG_AGO_MS)

    def commit_open(self, bootstrap: str) -> str:
        run_on(bootstrap, self._commit_open)
        return ""

    async def _commit_open(self, cluster: Cluster) -> None:
        for age in ("old", "new"):
            await self._open[f"{age}-continuing"].end(cluster, commit=True)
        await settle(cluster)


async def _start(cluster: Cluster, name: str, version: int, timeout_ms: int = LONG_MS) -> ScriptedProducer:
    producer = ScriptedProducer(name, version, timeout_ms)
    await producer.init(cluster)
    return producer


async def settle(cluster: Cluster, ended: str = "") -> None:
    """Wait until no transaction is completing and the given one is not open either."""
    async with asyncio.timeout(SETTLED_S_MAX):
        while any(
            one.state.startswith("Prepare") or (one.transactional_id == ended and one.state == "Ongoing")
            for one in await list_transactions(cluster)
        ):
            await asyncio.sleep(0.1)


def wait_until_settled(bootstrap: str) -> str:
    run_on(bootstrap, settle)
    return ""
