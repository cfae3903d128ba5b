"""Faults planted in the product to see that the simulator finds them.

Each one patches a few lines from outside for the duration of a run; the product has no code for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.broker.transactions.markers import MarkerSender
from headrace.coordinators.group.consumer.reconciliation import Reconciliation
from headrace.coordinators.transaction.fencing import fenced
from headrace.coordinators.transaction.request import AddPartitions, EndTransaction, Markers
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.coordinators.transaction.states import PREPARED
from headrace.records.batch import BatchHeader
from headrace.replication.local_replica import LocalReplica
from headrace.replication.partition import Partition
from headrace.statemachine.runtime import Runtime
from headrace.storage.append import AppendInfo
from headrace.storage.log import Log
from headrace.storage.recovery import RecoveryReport
from headrace.storage.segments.segment import Segment
from testkit.patching import replaced
from testkit.simulator.disk import SimulatedFile

WRITE_DELAY_S = 0.01


@contextmanager
def skip_torn_tail_cut() -> Iterator[None]:
    """Make recovery leave the first bad batch, and everything after it, in the file."""
    recover = Segment.recover

    def leave_tail(self: Segment, visit: Callable[[BatchHeader, memoryview], None]) -> str | None:
        size, file = self.size, self.file
        assert isinstance(file, SimulatedFile)
        whole = file.read(0, size)
        reason = recover(self, visit)
        if reason is not None:
            file.append(whole[self.size :])
            self.size = size
        return reason

    with replaced(Segment, "recover", leave_tail):
        yield


@contextmanager
def acknowledge_before_write() -> Iterator[None]:
    """Send the response first; write the batch WRITE_DELAY_S later, or just before the next one."""
    append = Partition.append
    waiting: dict[Partition, Callable[[], None]] = {}

    def promise(self: Partition, records: memoryview, header: BatchHeader, checked: Any, now_ms: int) -> AppendInfo:
        write_waiting = waiting.pop(self, None)
        if write_waiting is not None:
            write_waiting()
        known = self.log.producers.check(header) if header.producer_id >= 0 else None
        if known is not None:
            return AppendInfo(known.first_offset, known.last_offset, -1, True)
        copy, first = memoryview(bytearray(records)), self.log.log_end

        def write() -> None:
            append(self, copy, header, checked, now_ms)

        def write_later() -> None:
            if waiting.get(self) is write:
                waiting.pop(self)()

        waiting[self] = write
        asyncio.get_running_loop().call_later(WRITE_DELAY_S, write_later)
        return AppendInfo(first, first + header.last_offset_delta, -1, False)

    with replaced(Partition, "append", promise):
        yield


@contextmanager
def acknowledge_before_sync() -> Iterator[None]:
    """Acknowledge records and let readers see them before the fsync that `flush.messages` requires."""
    with (
        replaced(LocalReplica, "flushed", lambda self, offset: None),
        replaced(LocalReplica, "_hold_back", lambda self, first_offset: self.commit.sync()),
    ):
        yield


@contextmanager
def forget_producer_state() -> Iterator[None]:
    """Forget all producers when a log is opened, so that a retry looks like a new batch."""
    opened = Log.__dict__["open"].__func__

    def open_forgetfully(cls: type[Log], *args: Any, **options: Any) -> tuple[Log, RecoveryReport]:
        log, report = opened(cls, *args, **options)
        log.producers.reset(log.log_end)
        return log, report

    with replaced(Log, "open", classmethod(open_forgetfully)):
        yield


@contextmanager
def reply_before_commit() -> Iterator[None]:
    """Make coordinators respond as soon as they have written, without waiting for the commit."""

    def reply_at_once(
        self: Runtime[Any, Any], effects: list[tuple[Callable[[], None], Callable[[Exception], None]]]
    ) -> None:
        for on_committed, _ in effects:
            on_committed()

    with replaced(Runtime, "_park", reply_at_once):
        yield


@contextmanager
def lose_a_revocation() -> Iterator[None]:
    """Treat a partition as revoked as soon as its member was asked to revoke it."""
    with replaced(Reconciliation, "_holds", lambda self, partitions: False):
        yield


@contextmanager
def stable_off_by_one() -> Iterator[None]:
    """Move the last stable offset past the first record of an open transaction."""
    last_stable_offset = Log.last_stable_offset

    def one_too_many(self: Log, high_watermark: int) -> int:
        return min(last_stable_offset(self, high_watermark) + 1, high_watermark)

    with replaced(Log, "last_stable_offset", one_too_many):
        yield


@contextmanager
def lose_a_marker() -> Iterator[None]:
    """Never write the marker of the last partition of a transaction that has several."""
    ask = MarkerSender._send_to_leader

    async def ask_others(
        self: MarkerSender, leader: int, markers: Markers, epoch: int, partitions: list[TopicPartition]
    ) -> set[TopicPartition]:
        partitions_sent = [one for one in partitions if len(markers.partitions) == 1 or one != markers.partitions[-1]]
        return await ask(self, leader, markers, epoch, partitions_sent) if partitions_sent else set()

    with replaced(MarkerSender, "_send_to_leader", ask_others):
        yield


@contextmanager
def keep_the_epoch() -> Iterator[None]:
    """Keep the producer's epoch when a transaction ends, as before KIP-890."""
    with replaced(TransactionShard, "bumps_epochs", lambda self, client_version: False):
        yield


@contextmanager
def judge_before_markers() -> Iterator[None]:
    """Fence an EndTxn that arrives before the previous transaction's markers are written; it should be retriable."""
    decide = TransactionShard.decide

    def judge(self: TransactionShard, request: Any, now_ms: int, tx: Any) -> None:
        if isinstance(request, EndTransaction) and self.bumps_epochs(request.client_version):
            found = self.tables.all.get(request.transactional_id)
            if found is not None and found.state in PREPARED and request.producer_epoch + 1 != found.producer_epoch:
                raise fenced(request)
        decide(self, request, now_ms, tx)

    with replaced(TransactionShard, "decide", judge):
        yield


@contextmanager
def forget_the_next_id() -> Iterator[None]:
    """Reject the next id of a producer out of epochs until the markers of its last transaction are written."""
    decide = TransactionShard.decide

    def refuse(self: TransactionShard, request: Any, now_ms: int, tx: Any) -> None:
        if isinstance(request, AddPartitions):
            found = self.tables.all.get(request.transactional_id)
            if found is not None and found.state in PREPARED and request.producer_id != found.producer_id:
                raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        decide(self, request, now_ms, tx)

    with replaced(TransactionShard, "decide", refuse):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "skip-torn-tail-cut": skip_torn_tail_cut,
    "acknowledge-before-write": acknowledge_before_write,
    "acknowledge-before-sync": acknowledge_before_sync,
    "forget-producer-state": forget_producer_state,
}

# For the seeds of group_simulation.
GROUP_MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "reply-before-commit": reply_before_commit,
    "lose-a-revocation": lose_a_revocation,
}

# For the seeds of transaction_simulation.
TRANSACTION_MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "stable-off-by-one": stable_off_by_one,
    "lose-a-marker": lose_a_marker,
    "keep-the-epoch": keep_the_epoch,
    "judge-before-markers": judge_before_markers,
    "forget-the-next-id": forget_the_next_id,
}
