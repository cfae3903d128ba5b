"""Transactions in a directory that changes its server.

Some are committed or aborted; others are left open by one server and ended by the other, because their producers
continue, because one restarts, or because they time out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.admin.transactions import describe_producers, list_transactions
from headrace.client.consumer.fetching import READ_COMMITTED
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offset
from headrace.client.consumer.range_reader import read_once
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import GROUP, find_coordinator
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tools.prove.transactions.scripted_producers import ScriptedProducer, on

TOPIC = "transactions"
PLACES = [TopicPartition(TOPIC, index) for index in range(2)]
SOURCE = TopicPartition(TOPIC, 0)  # partition whose offsets groups commit; any would do
CLEANUP = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
SETTINGS = {CLEANUP: "1000"}
SHORT_MS = 15_000  # long enough for swapping the server, short enough to wait for
LONG_MS = 600_000
WAIT_S = 30.0
READ_WAIT_MS = 200
ENDED = ("Empty", "CompleteCommit", "CompleteAbort")


@dataclass
class Transaction:
    """One transaction; `committed` is None while it is undecided."""

    producer: str
    committed: bool | None = None
    offsets: dict[str, int] = field(default_factory=dict)  # by group


class Transactions:
    """Writes and ends transactions, and knows what a reader may see of them."""

    def __init__(self) -> None:
        self.ended = 0
        self._log: dict[TopicPartition, list[tuple[bytes, Transaction]]] = {place: [] for place in PLACES}
        self._offsets: dict[str, int] = {}  # committed offsets by group
        self._open: list[tuple[ScriptedProducer, Transaction, bool]] = []  # with whether its producer will commit it
        self._restarting: Transaction | None = None
        self._timing_out: Transaction | None = None
        self._left_at = 0.0

    # --- what one server leaves

    def begin(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, len(PLACES), 1)])[TOPIC].result(WAIT_S)

    def leave(self, bootstrap: str, turn: int) -> None:
        """Leave committed, aborted and open transactions, interleaved on the same partitions.

        The server must be stopped at once.
        """
        restarting = Transaction("restarting")
        producer = _real_producer(bootstrap)
        producer.begin_transaction()
        for place in PLACES:
            producer.produce(place.topic, b"restarting %d" % turn, partition=place.partition)
            self._log[place].append((b"restarting %d" % turn, restarting))
        assert producer.flush(WAIT_S) == 0
        producer.purge()
        self._restarting = restarting
        on(bootstrap, lambda cluster: self._leave(cluster, turn))

    async def _leave(self, cluster: Cluster, turn: int) -> None:
        for version in (1, 2):
            for commit in (True, False):
                await self._left_open(cluster, turn, version, commit)
                await self._finished(cluster, turn, version, commit)
        self._left_at = time.monotonic()
        name = f"timing-out-{1 + turn // 2 % 2}"
        self._timing_out = Transaction(name)
        late = ScriptedProducer(name, 1 + turn // 2 % 2, SHORT_MS)
        await late.init(cluster)
        await self._write(cluster, late, self._timing_out, f"{name} {turn}")
        await late.send_offsets(cluster, name, {SOURCE: turn})
        self._timing_out.offsets[name] = turn

    async def _left_open(self, cluster: Cluster, turn: int, version: int, commit: bool) -> None:
        name = f"going-on-{version}-{'commit' if commit else 'abort'}"
        producer, transaction = ScriptedProducer(name, version, LONG_MS), Transaction(name)
        await producer.init(cluster)
        await self._write(cluster, producer, transaction, f"{name} {turn}")
        await producer.send_offsets(cluster, name, {SOURCE: turn})
        transaction.offsets[name] = turn
        self._open.append((producer, transaction, commit))

    async def _finished(self, cluster: Cluster, turn: int, version: int, commit: bool) -> None:
        name = f"finished-{version}"
        producer, transaction = ScriptedProducer(name, version, LONG_MS), Transaction(name)
        await producer.init(cluster)
        await self._write(cluster, producer, transaction, f"{name} {turn} {commit}")
        transaction.offsets[name] = turn if commit else 1000 + turn
        await producer.send_offsets(cluster, name, {SOURCE: transaction.offsets[name]})
        await producer.end(cluster, commit=commit)
        self._decide(transaction, commit)

    async def _write(self, cluster: Cluster, producer: ScriptedProducer, transaction: Transaction, text: str) -> None:
        for place in PLACES:
            await producer.write(cluster, place, [text.encode()])
            self._log[place].append((text.encode(), transaction))

    def _decide(self, transaction: Transaction, committed: bool) -> None:
        transaction.committed = committed
        self.ended += 1
        if committed:
            self._offsets |= transaction.offsets

    def left(self) -> None:
        """Check, after the server has stopped, that it was too early for a timeout."""
        took_s = time.monotonic() - self._left_at
        assert took_s * 1000 < SHORT_MS, f"the server took {took_s:.0f} s to stop: who timed the transaction out?"

    # --- what the other server does with it

    def take_over(self, bootstrap: str) -> None:
        on(bootstrap, self._find_open)
        on(bootstrap, self._go_on)
        restarted = _real_producer(bootstrap)  # aborts its open transaction
        assert self._restarting is not None
        self._decide(self._restarting, False)
        again = Transaction("restarting")
        restarted.begin_transaction()
        for place in PLACES:
            restarted.produce(place.topic, b"restarted", partition=place.partition)
            self._log[place].append((b"restarted", again))
        restarted.commit_transaction(WAIT_S)
        self._decide(again, True)
        on(bootstrap, self._find_ended)

    async def _find_open(self, cluster: Cluster) -> None:
        """Check that the last stable offset is the start of the first open transaction, before producers continue."""
        for place in PLACES:
            stable, end = await _ends(cluster, place)
            producers = await describe_producers(cluster, place)
            first = min(one.start_offset for one in producers if one.start_offset is not None)
            assert stable == first < end, f"{place}: stable until {stable}, open from {first}, the end is {end}"
            await self._check_read(cluster, place)
        for _, transaction, _ in self._open:
            for group in transaction.offsets:
                code, _ = await _committed(cluster, group)
                assert code is ErrorCode.UNSTABLE_OFFSET_COMMIT, f"the offsets of {group}, undecided: {code.name}"

    async def _go_on(self, cluster: Cluster) -> None:
        """Write one more record and end the transactions, with ids and epochs that the other server assigned."""
        for producer, transaction, commit in self._open:
            await self._write(cluster, producer, transaction, f"{producer.transactional_id} went on")
            await producer.end(cluster, commit=commit)
            self._decide(transaction, commit)
        self._open.clear()

    async def _find_ended(self, cluster: Cluster) -> None:
        assert self._timing_out is not None
        async with asyncio.timeout(WAIT_S):
            while any(state not in ENDED for state in (await _states(cluster)).values()):
                await asyncio.sleep(0.1)
        states = await _states(cluster)
        assert states[self._timing_out.producer] == "CompleteAbort", f"timed out: {states}"
        self._decide(self._timing_out, False)
        for place in PLACES:
            stable, end = await _ends(cluster, place)
            assert stable == end, f"{place}: stable until {stable}, but nothing is open and the end is {end}"
            await self._check_read(cluster, place)
        for group, offset in self._offsets.items():
            found = await _committed(cluster, group)
            assert found == (ErrorCode.NONE, offset), f"the offset of {group} is {found}, not {offset}"

    async def _check_read(self, cluster: Cluster, place: TopicPartition) -> None:
        expected = list(self._readable(self._log[place]))
        found = await _read(cluster, place)
        assert found == expected, f"{place}: read_committed gives {found} instead of {expected}"

    def _readable(self, log: Iterable[tuple[bytes, Transaction]]) -> Iterable[bytes]:
        for value, transaction in log:
            if transaction.committed is None:
                return
            if transaction.committed:
                yield value


def _real_producer(bootstrap: str) -> Producer:
    settings = {"transactional.id": "restarting", "transaction.timeout.ms": LONG_MS, "log_level": 2}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(WAIT_S)
    return producer


async def _states(cluster: Cluster) -> dict[str, str]:
    return {one.transactional_id: one.state for one in await list_transactions(cluster)}


async def _ends(cluster: Cluster, place: TopicPartition) -> tuple[int, int]:
    """Return the last stable offset and the high watermark."""
    stable = await list_offset(cluster, place, LATEST, isolation=READ_COMMITTED)
    return stable, await list_offset(cluster, place, LATEST)


async def _read(cluster: Cluster, place: TopicPartition) -> list[bytes]:
    await cluster.refresh([place.topic])
    at = await list_offset(cluster, place, EARLIEST)
    end = await list_offset(cluster, place, LATEST, isolation=READ_COMMITTED)
    values = []
    while at < end:
        fetched = await read_once(cluster, place, at, wait_ms=READ_WAIT_MS, isolation=READ_COMMITTED)
        assert fetched.next_offset > at, f"{place}: nothing at {at}, though it is stable until {end}"
        values += [record.value or b"" for record in fetched.records]
        at = fetched.next_offset
    return values


async def _committed(cluster: Cluster, group: str) -> tuple[ErrorCode, int]:
    """Return error code and offset, as for a reader that requires stable offsets."""
    _, connection = await find_coordinator(cluster, group, GROUP)
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name=SOURCE.topic, partition_indexes=[SOURCE.partition])
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    answer: OffsetFetchResponse = await connection.request(
        OffsetFetchRequest(groups=[wanted], require_stable=True), version=9
    )
    found = answer.groups[0]
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code), group)
    partition = found.topics[0].partitions[0]
    return ErrorCode(partition.error_code), partition.committed_offset
