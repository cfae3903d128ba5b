"""Transactions on the command line: real transactional producers, and a transaction that hangs forever."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.cli.command_line import CommandLine

from headrace.base.errors import RETRIABLE, ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import READ_COMMITTED
from headrace.client.consumer.range_reader import read_once
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import TRANSACTION, find_coordinator
from headrace.coordinators.transaction.request import AddPartitions, InitProducer
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import BatchBuilder
from headrace.testing.cluster import EmbeddedNode

confluent_kafka = pytest.importorskip("confluent_kafka")

OLD_PRODUCE = 9  # Produce version of clients that add partitions to transactions themselves
HOUR_MS = 3_600_000
TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    """Yield a node that does not verify transactional batches with the coordinator, like Kafka before KIP-890."""
    with EmbeddedNode(
        {
            "log.retention.ms": "-1",
            "transaction.partition.verification.enable": "false",
            "transaction.two.phase.commit.enable": "true",
            "unstable.api.versions.enable": "true",
        }
    ) as node:
        yield node


@pytest.fixture
def headrace(node: EmbeddedNode) -> CommandLine:
    return CommandLine(node.bootstrap)


@pytest.fixture
def topic(headrace: CommandLine) -> str:
    name = f"orders-{time.monotonic_ns()}"
    headrace("topics", "create", name, "--partitions", "2")
    return name


@pytest.fixture
def make_producer(node: EmbeddedNode) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(transactional_id: str) -> Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": node.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
                "log_level": 2,
            }
        )
        producer.init_transactions(20)
        made.append(producer)
        return producer

    yield make
    while made:  # a producer is only closed when nothing refers to it
        made.pop().purge()


def write(producer: Producer, topic: str, partition: int = 0) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=partition)
    assert producer.flush(20) == 0


def loads(headrace: CommandLine, *arguments: Any) -> list[dict[str, Any]]:
    return json.loads(headrace("transactions", *arguments, "--json"))


def on(node: EmbeddedNode, work: Callable[..., Any]) -> Any:
    """Run `work` with our own client, for requests that other clients would not send."""
    host, _, port = node.bootstrap.partition(":")

    async def run() -> Any:
        async with Cluster([(host, int(port))], timeout_s=20) as cluster:
            return await work(cluster)

    return asyncio.run(run())


async def init(cluster: Cluster, transactional_id: str, **fields: Any) -> tuple[int, int]:
    _, connection = await find_coordinator(cluster, transactional_id, TRANSACTION)
    while True:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS, **fields)
        answer = await connection.request(request, version=6 if fields else None)
        if answer.error_code not in RETRIABLE:
            assert answer.error_code == ErrorCode.NONE
            return answer.producer_id, answer.producer_epoch


async def add(cluster: Cluster, transactional_id: str, producer: tuple[int, int], partition: TopicPartition) -> None:
    _, connection = await find_coordinator(cluster, transactional_id, TRANSACTION)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
        ],
    )
    answer = await connection.request(request, version=3)
    [result] = answer.results_by_topic_v3_and_below
    assert result.results_by_partition[0].partition_error_code == ErrorCode.NONE


async def produce(
    cluster: Cluster,
    partition: TopicPartition,
    value: bytes,
    producer: tuple[int, int] | None = None,
    timestamp: int | None = None,
) -> int:
    """Write a value and return its offset; transactional if `producer` (id, epoch) is given."""
    records = BatchBuilder()
    records.append(timestamp or int(time.time() * 1000), None, value)
    batch = (
        records.build()
        if producer is None
        else records.build(producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
    )
    data = ProduceRequest.PartitionProduceData(index=partition.partition, records=bytes(batch))
    request = ProduceRequest(
        transactional_id=None if producer is None else "whoever",
        acks=-1,
        timeout_ms=20_000,
        topic_data=[ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[data])],
    )
    answer = await (await cluster.leader(partition)).request(request, version=OLD_PRODUCE)
    (result,) = answer.responses[0].partition_responses
    assert result.error_code == ErrorCode.NONE
    return result.base_offset


async def committed(cluster: Cluster, partition: TopicPartition) -> list[bytes]:
    await cluster.refresh([partition.topic])
    fetched = await read_once(cluster, partition, 0, wait_ms=0, isolation=READ_COMMITTED)
    return [record.value for record in fetched.records]


# --- coordinators' state


def test_open_and_finished_transactions_are_listed_and_described(
    headrace: CommandLine, topic: str, make_producer: Callable[..., Any]
) -> None:
    names = [f"{topic}-{word}" for word in ("commit", "abort", "open")]
    producers = [make_producer(name) for name in names]
    for index, producer in enumerate(producers):
        write(producer, topic, partition=index // 2)
    producers[0].commit_transaction(20)
    producers[1].abort_transaction(20)
    expected = dict(zip(names, ("CompleteCommit", "CompleteAbort", "Ongoing"), strict=True))
    assert_soon(lambda: states(headrace, topic) == expected)
    assert states(headrace, topic, "--state", "Ongoing") == {names[2]: "Ongoing"}
    assert states(headrace, topic, "--duration-filter", "0").keys() >= {names[2]}
    assert states(headrace, topic, "--duration-filter", str(HOUR_MS)) == {}
    (found,) = loads(headrace, "describe", names[2])
    assert found["partitions"] == [{"topic": topic, "partition": 1}] and found["state"] == "Ongoing"
    assert found["timeout_ms"] == TIMEOUT_MS and not found["two_phase_commit"] and found["coordinator"] == 1
    assert abs(found["started_ms"] - time.time() * 1000) < 60_000
    (again,) = loads(headrace, "list", "--producer-id", str(found["producer_id"]))
    assert again["transactional_id"] == names[2]
    table = headrace("transactions", "describe", names[0], "--transactional-id", names[2])
    assert f"{topic}-1" in table and "1 min" in table and "CompleteCommit" in table
    assert names[1] in headrace("transactions", "list")


def states(headrace: CommandLine, topic: str, *arguments: str) -> dict[str, str]:
    listed = loads(headrace, "list", "--transactional-id-pattern", f"{topic}-.*", *arguments)
    return {one["transactional_id"]: one["state"] for one in listed}


def assert_soon(condition: Callable[..., Any]) -> None:
    """Wait until `met()`: EndTxn is acknowledged when it is decided, before the markers are written."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline


@pytest.fixture
def prepared(node: EmbeddedNode, topic: str) -> tuple[str, str]:
    """Return an external coordinator's transaction: its transactional id, and its producer id and epoch."""
    name = f"{topic}-2pc"

    async def prepare(cluster: Cluster) -> tuple[int, int]:
        await cluster.partitions(topic)
        producer = await init(cluster, name, enable2_pc=True)
        for index in (0, 1):
            await add(cluster, name, producer, TopicPartition(topic, index))
            await produce(cluster, TopicPartition(topic, index), b"%d" % index, producer)
        return producer

    producer_id, epoch = on(node, prepare)
    return name, f"{producer_id}:{epoch}"


def all_committed(node: EmbeddedNode, topic: str) -> list[list[bytes]]:
    return [on(node, lambda cluster, index=index: committed(cluster, TopicPartition(topic, index))) for index in (0, 1)]


def test_a_two_phase_commit_transaction_has_no_timeout_and_can_be_terminated(
    headrace: CommandLine, node: EmbeddedNode, topic: str, prepared: tuple[str, str]
) -> None:
    name, _ = prepared
    (found,) = loads(headrace, "describe", name)
    assert (found["state"], found["two_phase_commit"], found["timeout_ms"]) == ("Ongoing", True, None)
    table = headrace("transactions", "describe", name)
    assert "Ongoing" in table and "none: two-phase commit" in table
    assert "aborted" in headrace("transactions", "terminate", name)
    assert "Ongoing" not in headrace("transactions", "describe", name)
    assert all_committed(node, topic) == [[], []]


@pytest.mark.parametrize("how", ["by name", "by what was written down"])
def test_a_prepared_transaction_is_committed_by_an_operator(
    headrace: CommandLine, node: EmbeddedNode, topic: str, prepared: tuple[str, str], how: str
) -> None:
    name, prepared_identity = prepared
    assert all_committed(node, topic) == [[], []]
    arguments = [name] if how == "by name" else ["--transactional-id", name, "--prepared", prepared_identity]
    message = headrace("transactions", "commit", *arguments)
    assert message == f"{name}: committed transaction {prepared_identity}: {topic}-0 {topic}-1\n"
    assert_soon(lambda: all_committed(node, topic) == [[b"0"], [b"1"]])
    message = headrace("transactions", "commit", name, fails=True)
    assert "INVALID_TXN_STATE" in message and "no transaction is open (CompleteCommit)" in message


def test_commit_refuses_a_transaction_that_was_not_prepared(
    headrace: CommandLine, node: EmbeddedNode, topic: str, prepared: tuple[str, str], make_producer: Callable[..., Any]
) -> None:
    name, prepared_identity = prepared
    message = headrace("transactions", "commit", name, "--prepared", "1:2", fails=True)
    assert "INVALID_TXN_STATE" in message and f"transaction {prepared_identity} is open, and not 1:2" in message
    ordinary = make_producer(f"{topic}-o")
    write(ordinary, topic)
    assert "takes part in no two-phase commit" in headrace("transactions", "commit", f"{topic}-o", fails=True)
    ordinary.commit_transaction(20)
    assert loads(headrace, "describe", name)[0]["state"] == "Ongoing"


def test_commit_is_refused_by_a_broker_without_unstable_api_versions(headrace: CommandLine) -> None:
    with EmbeddedNode({"transaction.two.phase.commit.enable": "true"}) as other:
        on(other, lambda cluster: find_coordinator(cluster, "x", TRANSACTION))

        async def prepare() -> None:
            transactions = other.node.broker.transactions
            init_producer = InitProducer("x", 1, fresh_producer_id=10**9, enable_two_phase_commit=True)
            made = await transactions.decide("x", init_producer)
            await transactions.decide("x", AddPartitions("x", made.producer_id, 0, (TopicPartition("t", 0),)))

        other._do(prepare(), 20)
        message = CommandLine(other.bootstrap)("transactions", "commit", "x", fails=True)
        assert "UNSUPPORTED_VERSION" in message and "unstable.api.versions.enable" in message


def test_the_producers_of_a_partition_are_listed(
    headrace: CommandLine, topic: str, make_producer: Callable[..., Any]
) -> None:
    write(make_producer(f"{topic}-p"), topic, partition=1)
    (found,) = loads(headrace, "producers", "--topic", topic, "--partition", 1)
    assert (found["topic"], found["partition"], found["start_offset"], found["last_sequence"]) == (topic, 1, 0, 0)
    assert loads(headrace, "producers", "--topic", topic, "--partition", 0) == []
    assert str(found["producer_id"]) in headrace(
        "transactions", "producers", "--topic", topic, "-p", 1, "--broker-id", 1
    )


def test_terminate_fences_the_producer_and_aborts(
    headrace: CommandLine, node: EmbeddedNode, topic: str, make_producer: Callable[..., Any]
) -> None:
    producer, name = make_producer(f"{topic}-t"), f"{topic}-t"
    write(producer, topic)
    assert "aborted its transaction" in headrace("transactions", "terminate", name)
    (found,) = loads(headrace, "describe", name)
    assert found["state"] == "Empty" and found["partitions"] == []
    assert loads(headrace, "producers", "--topic", topic, "-p", 0)[0]["start_offset"] is None
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.commit_transaction(20)
    assert refused.value.args[0].fatal() or refused.value.args[0].txn_requires_abort()
    assert "no transaction was open (Empty)" in headrace("transactions", "terminate", "--transactional-id", name)


# --- hanging transactions


@pytest.mark.parametrize("cause", ["fenced", "unknown"])
def test_a_hanging_transaction_is_found_and_aborting_it_unblocks_readers(
    headrace: CommandLine, node: EmbeddedNode, topic: str, cause: str
) -> None:
    partition, name = TopicPartition(topic, 0), f"{topic}-zombie"

    async def hang(cluster: Cluster) -> tuple[tuple[int, int], int, list[bytes]]:
        await cluster.partitions(topic)
        if cause == "fenced":
            zombie = await init(cluster, name)
            await init(cluster, name)  # its successor
        else:
            zombie = (await cluster.request(InitProducerIdRequest(transactional_id=None))).producer_id, 0
        await produce(cluster, partition, b"before")
        offset = await produce(cluster, partition, b"late", zombie, int(time.time() * 1000) - HOUR_MS)
        await produce(cluster, partition, b"after")
        return zombie, offset, await committed(cluster, partition)

    (producer_id, epoch), offset, seen = on(node, hang)
    assert seen == [b"before"] and offset == 1
    (found,) = loads(headrace, "find-hanging", "--topic", topic)
    assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 0, offset)
    assert (found["producer_id"], found["producer_epoch"]) == (producer_id, epoch)
    expected = (name, f"{name} is Empty") if cause == "fenced" else (None, "no coordinator knows its producer")
    assert (found["transactional_id"], found["reason"]) == expected
    assert "  1 h  " in headrace("transactions", "find-hanging", "--topic", topic, "-p", 0)
    assert [one["topic"] for one in loads(headrace, "find-hanging", "--broker-id", 1)].count(topic) == 1
    assert loads(headrace, "find-hanging", "--topic", topic, "--partition", 1) == []
    assert loads(headrace, "find-hanging", "--topic", topic, "--max-transaction-timeout", 56) == [], "five minutes more"
    message = headrace("transactions", "abort", "--topic", topic, "-p", 0, "--start-offset", 0, fails=True)
    assert "from offset 0" in message and "from 1" in message
    arguments = (
        ("--start-offset", offset)
        if cause == "fenced"
        else ("--producer-id", producer_id, "--producer-epoch", epoch, "--coordinator-epoch", -1)
    )
    assert str(producer_id) in headrace("transactions", "abort", "--topic", topic, "-p", 0, *arguments)
    assert loads(headrace, "find-hanging", "--topic", topic) == []
    assert on(node, lambda cluster: committed(cluster, partition)) == [b"before", b"after"]


def test_an_ongoing_transaction_is_not_reported_as_hanging(
    headrace: CommandLine, node: EmbeddedNode, topic: str, make_producer: Callable[..., Any]
) -> None:
    producer, name = make_producer(f"{topic}-w"), f"{topic}-w"
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0, timestamp=int(time.time() * 1000) - HOUR_MS)
    assert producer.flush(20) == 0
    assert loads(headrace, "find-hanging", "--topic", topic) == []
    message = headrace("transactions", "abort", "--topic", topic, "-p", 0, "--start-offset", 0, fails=True)
    assert f"that of {name} (Ongoing)" in message and "terminate" in message
    producer.commit_transaction(20)
    partition = TopicPartition(topic, 0)
    assert_soon(lambda: on(node, lambda cluster: committed(cluster, partition)) == [b"x"])


# --- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe",), "at least one transactional id"),
        (("terminate",), "at least one transactional id"),
        (("commit",), "at least one transactional id"),
        (("commit", "nobody"), "TRANSACTIONAL_ID_NOT_FOUND"),
        (("commit", "a", "--prepared", "12"), "'12' is not PRODUCER-ID:EPOCH"),
        (("commit", "a", "b", "--prepared", "1:2"), "exactly one transactional id"),
        (("describe", "nobody"), "TRANSACTIONAL_ID_NOT_FOUND"),
        (("terminate", "nobody"), "TRANSACTIONAL_ID_NOT_FOUND"),
        (("list", "--state", "Happy"), "Happy"),
        (("list", "--transactional-id-pattern", "a("), "INVALID_REGULAR_EXPRESSION"),
        (("producers", "--topic", "nowhere", "--partition", "0"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("find-hanging", "--partition", "0"), "--topic"),
        (("find-hanging", "--topic", "nowhere"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("find-hanging", "--broker-id", "77"), "there is no broker 77"),
        (("abort", "--topic", "t", "--partition", "0"), "give either --start-offset"),
        (
            ("abort", "--topic", "t", "-p", "0", "--start-offset", "1", "--producer-id", "1"),
            "give either --start-offset",
        ),
        (("abort", "--topic", "t", "-p", "0", "--producer-id", "1"), "given together"),
    ],
)
def test_invalid_commands_fail_with_a_specific_message(
    headrace: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    assert message in headrace("transactions", *arguments, fails=True)


def test_unknown_partitions_and_stale_producer_epochs_are_refused(
    headrace: CommandLine, topic: str, make_producer: Callable[..., Any]
) -> None:
    for command in (("producers",), ("find-hanging",), ("abort", "--start-offset", 0)):
        message = headrace("transactions", *command, "--topic", topic, "--partition", 9, fails=True)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in message and "9" in message
    for _ in range(2):
        producer = make_producer(f"{topic}-e")  # fences the previous one
        write(producer, topic)
        producer.commit_transaction(20)
    assert_soon(lambda: loads(headrace, "producers", "--topic", topic, "-p", 0)[0]["start_offset"] is None)
    (found,) = loads(headrace, "producers", "--topic", topic, "-p", 0)
    message = headrace(
        "transactions", "abort", "--topic", topic, "-p", 0, "--producer-id", found["producer_id"], "--producer-epoch", 0,
        "--coordinator-epoch", 0, fails=True,
    )  # fmt: skip
    assert "INVALID_PRODUCER_EPOCH" in message
