"""Known transaction failures of other systems, provoked against a whole node (docs/promises.md lists them by row)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.api.admin_client import Admin
from tests.api.transactional_client import OLD_END, RawProducer, fetch, init, read, read_stable

from headrace.base.errors import ErrorCode
from headrace.coordinators.partitioning import TRANSACTIONS_TOPIC
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.testing.cluster import EmbeddedNode

SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10",
}
TRANSACTION_TIMEOUT_MS_MAX = 900_000
NONE, FENCED, STALE_EPOCH = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
_numbers = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SETTINGS) as running:
        admin = Admin(running.port)
        for key_type in (0, 1):
            admin.send_request(FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type))
        yield running


@pytest.fixture
def admin(node: EmbeddedNode) -> Admin:
    return Admin(node.port)


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"orders-{next(_numbers)}"
    admin.create(name, 2)
    return name


@pytest.fixture
def producer(admin: Admin, topic: str) -> RawProducer:
    return RawProducer(admin, f"{topic}-tx", timeout=TRANSACTION_TIMEOUT_MS_MAX)


def transaction_state_of(admin: Admin, name: str) -> str:
    return (
        admin.send_request(DescribeTransactionsRequest(transactional_ids=[name]))
        .transaction_states[0]
        .transaction_state
    )


def read_all_stable(admin: Admin, topic: str) -> list[list[bytes]]:
    return [read_stable(admin, topic, index) for index in (0, 1)]


# --- delayed requests


@pytest.mark.parametrize("late_commits", [True, False])
def test_a_delayed_end_txn_does_not_end_the_next_transaction(
    admin: Admin, topic: str, producer: RawProducer, late_commits: bool
) -> None:
    """Guard against KAFKA-17754 (row 2): a delayed EndTxn committed or aborted half of the next transaction."""
    first = producer.identity
    producer.send(topic, 0, b"first")
    producer.end(True)
    producer.send(topic, 0, b"second")
    late = producer.send_end_txn(late_commits, first)
    assert late.error_code == FENCED and transaction_state_of(admin, producer.name) == "Ongoing"
    assert read(admin, topic) == [b"first"]
    producer.send(topic, 1, b"second too")
    producer.end(True)
    assert read_all_stable(admin, topic) == [[b"first", b"second"], [b"second too"]]


@pytest.mark.parametrize("next_is_open", [True, False])
def test_a_delayed_produce_does_not_join_the_next_transaction(
    admin: Admin, topic: str, producer: RawProducer, next_is_open: bool
) -> None:
    """Guard against KAFKA-17754 (row 2): the next transaction committed a delayed Produce of an aborted one."""
    first = producer.identity
    producer.send(topic, 0, b"first")
    producer.end(False)
    assert read_all_stable(admin, topic) == [[], []]
    if next_is_open:
        producer.send(topic, 0, b"second")
    for index in (0, 1):  # a partition of the aborted transaction, and one that it had not reached yet
        assert producer.send(topic, index, b"late", sequence=1 - index, identity=first)[0] == STALE_EPOCH
    if next_is_open:
        producer.end(True)
    assert read_all_stable(admin, topic) == [[b"second"] if next_is_open else [], []]


def test_a_fenced_producer_cannot_write_or_end_transactions(admin: Admin, topic: str, producer: RawProducer) -> None:
    """Resume a paused producer after its successor has started."""
    producer.send(topic, 0, b"of the zombie")
    successor = RawProducer(admin, producer.name)
    successor.send(topic, 0, b"of the successor")
    assert producer.send(topic, 0, b"late")[0] == STALE_EPOCH
    assert producer.send(topic, 1, b"late")[0] == STALE_EPOCH
    for commit in (True, False):
        assert producer.send_end_txn(commit).error_code == FENCED
        assert producer.send_end_txn(commit, version=OLD_END).error_code == FENCED
    own = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    assert init(admin, producer.name, **own).error_code == FENCED
    successor.end(True)
    assert read_all_stable(admin, topic) == [[b"of the successor"], []]


def test_a_sequence_gap_is_refused_without_affecting_the_transaction(
    admin: Admin, topic: str, producer: RawProducer
) -> None:
    """Check that batches after a lost one are refused."""
    assert producer.send(topic, 1, b"not the first", sequence=5) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    producer.send(topic, 0, b"first")
    assert producer.send(topic, 0, b"third", sequence=2)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(topic, 0, b"second", sequence=1) == (NONE, 1)
    assert producer.send(topic, 0, b"second", sequence=1) == (NONE, 1)  # a duplicate is stored once
    producer.end(True)
    assert read_all_stable(admin, topic) == [[b"first", b"second"], []]


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_txn_succeeds_and_the_opposite_decision_is_refused(
    admin: Admin, topic: str, producer: RawProducer, commit: bool
) -> None:
    """Send EndTxn three times and then the opposite decision: the first decision stands."""
    first = producer.identity
    producer.send(topic, 0, b"x")
    answers = [producer.send_end_txn(commit, first) for _ in range(3)]
    assert [(one.error_code, one.producer_id, one.producer_epoch) for one in answers] == [
        (NONE, first[0], first[1] + 1)
    ] * 3
    assert producer.send_end_txn(not commit, first).error_code == ErrorCode.INVALID_TXN_STATE
    assert read_all_stable(admin, topic) == [[b"x"] if commit else [], []]


def test_init_producer_id_refuses_a_transaction_timeout_out_of_range(admin: Admin, topic: str) -> None:
    """Check the limit: a transaction that stays open indefinitely blocks its readers indefinitely."""
    for timeout in (900_001, 2**31 - 1, 0, -1):
        assert init(admin, f"{topic}-slow", timeout=timeout).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert transaction_state_of(admin, f"{topic}-slow") == ""


# --- what readers see


def test_an_abort_leaves_the_committed_group_offset_unchanged(admin: Admin, topic: str, producer: RawProducer) -> None:
    """Guard against KAFKA-17582 (row 3): an unclear consumer position after an abort.

    The cluster keeps the last committed offset; seeking back to it is the client's job.
    """
    group = f"{topic}-group"

    def commit_offset(offset: int) -> None:
        add_offsets = AddOffsetsToTxnRequest(
            transactional_id=producer.name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id=group,
        )
        assert admin.send_request(add_offsets).error_code == NONE
        place = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.name,
            group_id=group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[place])],
        )
        assert admin.send_request(request, 4).topics[0].partitions[0].error_code == NONE

    def committed() -> int:
        """Return the committed offset once no commit is pending."""
        requested = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        add_offsets = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[requested])
        while True:
            answer = admin.send_request(OffsetFetchRequest(groups=[add_offsets], require_stable=True), 9)
            (found,) = answer.groups[0].topics[0].partitions
            if found.error_code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                return found.committed_offset

    commit_offset(7)
    producer.end(True)
    assert committed() == 7
    commit_offset(12)
    producer.end(False)
    assert committed() == 7


def test_the_last_stable_offset_is_the_first_offset_of_an_open_transaction(
    admin: Admin, topic: str, producer: RawProducer
) -> None:
    """Guard against Redpanda #3036 (row 9): an off-by-one exposed the first record of an open transaction."""
    admin.produce(topic, 0, b"before")
    assert producer.send(topic, 0, b"open") == (NONE, 1)
    admin.produce(topic, 0, b"after")
    data = fetch(admin, topic)
    assert (data.last_stable_offset, data.high_watermark) == (1, 3)
    assert read(admin, topic) == [b"before"] and read(admin, topic, offset=1) == []
    assert read(admin, topic, committed=False) == [b"before", b"open", b"after"]
    producer.end(False)
    assert read_stable(admin, topic) == [b"before", b"after"]
    assert fetch(admin, topic).last_stable_offset == 4  # includes the marker


def test_a_late_abort_hides_records_interleaved_with_committed_transactions(
    admin: Admin, topic: str, producer: RawProducer
) -> None:
    """Guard against KoP and Tansu (row 18): read_committed returned aborted records if other transactions ended between."""
    others = [RawProducer(admin, f"{topic}-other-{number}") for number in range(3)]
    producer.send(topic, 0, b"bad")
    for number, other in enumerate(others):
        other.send(topic, 0, b"good %d" % number)
        other.end(True)
        producer.send(topic, 0, b"bad")
    assert read(admin, topic) == []
    producer.end(False)
    good = [b"good 0", b"good 1", b"good 2"]
    assert read_stable(admin, topic) == good
    for offset in range(1, 11):  # a reader that starts in the middle also receives the aborted transactions
        assert set(read_stable(admin, topic, 0, offset)) <= set(good)
    assert b"bad" in read(admin, topic, committed=False)


# --- restarts of nodes and coordinators


@pytest.fixture(params=["stop", "kill"])
def restart(node: EmbeddedNode, request: pytest.FixtureRequest) -> Callable[..., Any]:
    def again() -> None:
        getattr(node, request.param)()
        node.start()

    return again


def test_records_at_an_offset_are_identical_after_a_restart(
    admin: Admin, topic: str, producer: RawProducer, restart: Callable[..., Any]
) -> None:
    """Guard against Redpanda #3003 (row 8): offsets had different records after a fault.

    It applied records before they were committed.
    """
    for number in range(4):
        producer.send(topic, 0, b"%d" % number)
        producer.end(number % 2 == 0)
    read_stable(admin, topic)
    seen = bytes(fetch(admin, topic, committed=False).records)  # type: ignore[arg-type]
    restart()
    assert bytes(fetch(admin, topic, committed=False).records) == seen  # type: ignore[arg-type]
    producer.send(topic, 0, b"new")
    producer.end(True)
    assert read_stable(admin, topic) == [b"0", b"2", b"new"]
    assert bytes(fetch(admin, topic, committed=False).records).startswith(seen)  # type: ignore[arg-type]


def test_a_refused_commit_never_exposes_its_records(admin: Admin, topic: str) -> None:
    """Guard against Redpanda (row 10): a commit failed with INVALID_TXN_STATE, yet its writes were visible."""
    hasty = RawProducer(admin, f"{topic}-hasty", timeout=1)
    hasty.send(topic, 0, b"too slow")
    while transaction_state_of(admin, hasty.name) != "CompleteAbort":
        pass  # the expiry sweep runs every 10 ms
    refused = hasty.send_end_txn(True)
    assert refused.error_code == ErrorCode.INVALID_TXN_STATE
    assert read_all_stable(admin, topic) == [[], []]
    RawProducer(admin, hasty.name)
    assert read_all_stable(admin, topic) == [[], []]


def test_an_open_transaction_survives_a_restart_of_its_coordinator(
    admin: Admin, topic: str, producer: RawProducer, restart: Callable[..., Any]
) -> None:
    """Guard against Redpanda #6018 (row 11): an election lost in-memory state and with it acknowledged records."""
    for index in (0, 1):
        assert producer.send(topic, index, b"before")[0] == NONE
    restart()
    assert transaction_state_of(admin, producer.name) == "Ongoing"
    assert nothing_is_visible(admin, topic)
    assert producer.send(topic, 0, b"after")[0] == NONE
    producer.end(True)
    assert read_all_stable(admin, topic) == [[b"before", b"after"], [b"before"]]


def nothing_is_visible(admin: Admin, topic: str) -> bool:
    return [read(admin, topic, index) for index in (0, 1)] == [[], []]


def test_acknowledged_transactions_are_delivered_after_repeated_kills(
    node: EmbeddedNode, admin: Admin, topic: str, producer: RawProducer
) -> None:
    """Guard against Redpanda (row 12): after hours of kills, 9,988 of 11,225 acknowledged writes were never delivered."""
    acknowledged: list[bytes] = []
    for number in range(5):
        value = b"%d" % number
        assert [producer.send(topic, index, value)[0] for index in (0, 1)] == [NONE, NONE]
        if number % 2:
            node.kill()
            node.start()
        producer.end(True)
        acknowledged.append(value)
        if not number % 2:
            node.kill()  # between the decision and its markers, or after them
            node.start()
    assert read_all_stable(admin, topic) == [acknowledged, acknowledged]


@pytest.mark.parametrize("commit", [True, False])
def test_retrying_a_decided_end_txn_after_a_restart_succeeds(
    node: EmbeddedNode, admin: Admin, topic: str, producer: RawProducer, commit: bool, restart: Callable[..., Any]
) -> None:
    """Guard against Redpanda #9571 (row 13): a commit succeeded but returned an error, so clients repeated the work."""
    first = producer.identity
    producer.send(topic, 0, b"once")
    assert producer.send_end_txn(commit, first).error_code == NONE  # assume that this response is lost with its node
    restart()
    again = producer.send_end_txn(commit, first)
    assert (again.error_code, again.producer_epoch) == (NONE, first[1] + 1)
    assert read_all_stable(admin, topic) == [[b"once"] if commit else [], []]


async def _never(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ["reload", "kill"])
def test_pending_markers_are_written_by_the_next_coordinator(
    node: EmbeddedNode, admin: Admin, topic: str, producer: RawProducer, commit: bool, how: str
) -> None:
    """Lose the coordinator between prepare and markers: the next one to load the shard carries out the decision."""
    first = producer.identity
    for index in (0, 1):
        producer.send(topic, index, b"x")
    broker = node.node.broker
    broker._coordinators._markers._send_to_leaders = _never  # type: ignore[assignment]
    request = producer.send_end_txn(commit, first)
    assert request.error_code == NONE
    assert transaction_state_of(admin, producer.name) == ("PrepareCommit" if commit else "PrepareAbort")
    assert nothing_is_visible(admin, topic)
    if how == "kill":
        node.kill()
        node.start()
    else:
        del broker._coordinators._markers._send_to_leaders

        async def reload() -> None:
            index = broker.transactions.partition_of(producer.name)
            broker.transactions._unload(index)
            broker.transactions.elected(broker.replicas.get(TRANSACTIONS_TOPIC, index))
            await broker.transactions.settle()

        node._do(reload(), 20)
    assert read_all_stable(admin, topic) == ([[b"x"], [b"x"]] if commit else [[], []])
    assert producer.send_end_txn(commit, first).error_code == NONE


def test_a_deleted_partition_does_not_block_the_end_of_an_open_transaction(
    admin: Admin, topic: str, producer: RawProducer
) -> None:
    """Delete the topic of one partition: the transaction still ends in all others."""
    other = f"{topic}-other"
    admin.create(other)
    producer.send(other, 0, b"gone")
    producer.send(topic, 0, b"stays")
    deleted = admin.send_request(DeleteTopicsRequest(topic_names=[other], timeout_ms=10_000), 5)
    assert deleted.responses[0].error_code == NONE
    producer.end(True)
    assert read_stable(admin, topic) == [b"stays"]
    producer.send(topic, 0, b"next")  # waits until the previous transaction is complete
    producer.end(True)
    assert read_stable(admin, topic) == [b"stays", b"next"]
