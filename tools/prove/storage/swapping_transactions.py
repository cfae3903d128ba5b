"""Transactions in a data directory that Headrace and Kafka serve in turn.

Some are committed or aborted; others are open when one server stops and end on the other, because their producers
continue, because a producer restarts, or because they time out.
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
from tools.prove.transactions.scripted_producers import ScriptedProducer, run_on

TOPIC = "transactions"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(2)]
SOURCE = TopicPartition(TOPIC, 0)  # partition whose offsets the groups commit; any partition would do
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
        self._log: dict[TopicPartition, list[tuple[bytes, Transaction]]] = {partition: [] for partition in PARTITIONS}
        self._offsets: dict[str, int] = {}  # committed offsets by group
        self._open: list[tuple[ScriptedProducer, Transaction, bool]] = []  # with whether its producer will commit it
        self._restarting: Transaction | None = None
        self._timing_out: Transaction | None = None
        self._left_at = 0.0

    # --- before one server stops

    def create_topic(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, len(PARTITIONS), 1)])[TOPIC].result(WAIT_S)

    def leave_open(self, bootstrap: str, turn: int) -> None:
        """Leave committed, aborted and open transactions, interleaved on the same partitions.

        The caller must stop the server immediately afterwards.
        """
        restarting = Transaction("restarting")
        producer = _real_producer(bootstrap)
        producer.begin_transaction()
        for partition in PARTITIONS:
            producer.produce(partition.topic, b"restarting %d" % turn, partition=partition.partition)
            self._log[partition].append((b"restarting %d" % turn, restarting))
        assert producer.flush(WAIT_S) == 0
        producer.purge()
        self._restarting = restarting
        run_on(bootstrap, lambda cluster: self._leave_open(cluster, turn))

    async def _leave_open(self, cluster: Cluster, turn: int) -> None:
        for version in (1, 2):
            for commit in (True, False):
                await self._begin_continuing(cluster, turn, version, commit)
                await self._finish(cluster, turn, version, commit)
        self._left_at = time.monotonic()
        name = f"timing-out-{1 + turn // 2 % 2}"
        self._timing_out = Transaction(name)
        late = ScriptedProducer(name, 1 + turn // 2 % 2, SHORT_MS)
        await late.init(cluster)
        await self._write(cluster, late, self._timing_out, f"{name} {turn}")
        await late.send_offsets(cluster, name, {SOURCE: turn})
        self._timing_out.offsets[name] = turn

    async def _begin_continuing(self, cluster: Cluster, turn: int, version: int, commit: bool) -> None:
        name = f"continuing-{version}-{'commit' if commit else 'abort'}"
        producer, transaction = ScriptedProducer(name, version, LONG_MS), Transaction(name)
        await producer.init(cluster)
        await self._write(cluster, producer, transaction, f"{name} {turn}")
        await producer.send_offsets(cluster, name, {SOURCE: turn})
        transaction.offsets[name] = turn
        self._open.append((producer, transaction, commit))

    async def _finish(self, cluster: Cluster, turn: int, version: int, commit: bool) -> None:
        name = f"finished-{version}"
        producer, transaction = ScriptedProducer(name, version, LONG_MS), Transaction(name)
        await producer.init(cluster)
        await self._write(cluster, producer, transaction, f"{name} {turn} {commit}")
        transaction.offsets[name] = turn if commit else 1000 + turn
        await producer.send_offsets(cluster, name, {SOURCE: transaction.offsets[name]})
        await producer.end(cluster, commit=commit)
        self._decide(transaction, commit)

    async def _write(self, cluster: Cluster, producer: ScriptedProducer, transaction: Transaction, text: str) -> None:
        for partition in PARTITIONS:
            await producer.write(cluster, partition, [text.encode()])
            self._log[partition].append((text.encode(), transaction))

    def _decide(self, transaction: Transaction, committed: bool) -> None:
        transaction.committed = committed
        self.ended += 1
        if committed:
            self._offsets |= transaction.offsets

    def check_not_timed_out(self) -> None:
        """Check, after the server has stopped, that it cannot have timed out the transaction itself."""
        took_s = time.monotonic() - self._left_at
        assert took_s * 1000 < SHORT_MS, (
            f"the server took {took_s:.0f} s to stop and may have timed out the transaction itself"
        )

    # --- on the other server

    def continue_on(self, bootstrap: str) -> None:
        """Check the open transactions, end them and check the outcome."""
        run_on(bootstrap, self._check_open)
        run_on(bootstrap, self._end_continuing)
        restarted = _real_producer(bootstrap)  # aborts its open transaction
        assert self._restarting is not None
        self._decide(self._restarting, False)
        again = Transaction("restarting")
        restarted.begin_transaction()
        for partition in PARTITIONS:
            restarted.produce(partition.topic, b"restarted", partition=partition.partition)
            self._log[partition].append((b"restarted", again))
        restarted.commit_transaction(WAIT_S)
        self._decide(again, True)
        run_on(bootstrap, self._check_ended)

    async def _check_open(self, cluster: Cluster) -> None:
        """Check that the last stable offset is the start of the first open transaction, before producers continue."""
        for partition in PARTITIONS:
            stable, end = await _ends(cluster, partition)
            producers = await describe_producers(cluster, partition)
            first = min(one.start_offset for one in producers if one.start_offset is not None)
            assert stable == first < end, (
                f"{partition}: the last stable offset is {stable}, the first open transaction starts at {first}, "
                f"the end is {end}"
            )
            await self._check_read(cluster, partition)
        for _, transaction, _ in self._open:
            for group in transaction.offsets:
                code, _ = await _committed(cluster, group)
                assert code is ErrorCode.UNSTABLE_OFFSET_COMMIT, (
                    f"the offsets of {group} are undecided, but the response is {code.name}"
                )

    async def _end_continuing(self, cluster: Cluster) -> None:
        """Write one more record and end the transactions, with ids and epochs that the other server assigned."""
        for producer, transaction, commit in self._open:
            await self._write(cluster, producer, transaction, f"{producer.transactional_id} continued")
            await producer.end(cluster, commit=commit)
            self._decide(transaction, commit)
        self._open.clear()

    async def _check_ended(self, cluster: Cluster) -> None:
        """Check that all transactions end, with the records and offsets of exactly the committed ones."""
        assert self._timing_out is not None
        async with asyncio.timeout(WAIT_S):
            while any(state not in ENDED for state in (await _states(cluster)).values()):
                await asyncio.sleep(0.1)
        states = await _states(cluster)
        assert states[self._timing_out.producer] == "CompleteAbort", (
            f"the transaction that should have timed out is not aborted: {states}"
        )
        self._decide(self._timing_out, False)
        for partition in PARTITIONS:
            stable, end = await _ends(cluster, partition)
            assert stable == end, (
                f"{partition}: the last stable offset is {stable} and the end is {end}, although no transaction is open"
            )
            await self._check_read(cluster, partition)
        for group, offset in self._offsets.items():
            found = await _committed(cluster, group)
            assert found == (ErrorCode.NONE, offset), f"the offset of {group} is {found}, not {offset}"

    async def _check_read(self, cluster: Cluster, partition: TopicPartition) -> None:
        expected = list(self._readable(self._log[partition]))
        found = await _read(cluster, partition)
        assert found == expected, f"{partition}: read_committed gives {found} instead of {expected}"

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


async def _ends(cluster: Cluster, partition: TopicPartition) -> tuple[int, int]:
    """Return the last stable offset and the high watermark."""
    stable = await list_offset(cluster, partition, LATEST, isolation=READ_COMMITTED)
    return stable, await list_offset(cluster, partition, LATEST)


async def _read(cluster: Cluster, partition: TopicPartition) -> list[bytes]:
    await cluster.refresh([partition.topic])
    at = await list_offset(cluster, partition, EARLIEST)
    end = await list_offset(cluster, partition, LATEST, isolation=READ_COMMITTED)
    values: list[bytes] = []
    while at < end:
        fetched = await read_once(cluster, partition, at, wait_ms=READ_WAIT_MS, isolation=READ_COMMITTED)
        assert fetched.next_offset > at, f"{partition}: no record at {at}, although the last stable offset is {end}"
        for record in fetched.records:
            assert record.value is not None
            values.append(record.value)
        at = fetched.next_offset
    return values


async def _committed(cluster: Cluster, group: str) -> tuple[ErrorCode, int]:
    """Return error code and offset, as for a reader that requires stable offsets."""
    _, connection = await find_coordinator(cluster, group, GROUP)
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name=SOURCE.topic, partition_indexes=[SOURCE.partition])
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    response: OffsetFetchResponse = await connection.request(
        OffsetFetchRequest(groups=[wanted], require_stable=True), version=9
    )
    found = response.groups[0]
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code), group)
    partition = found.topics[0].partitions[0]
    return ErrorCode(partition.error_code), partition.committed_offset
