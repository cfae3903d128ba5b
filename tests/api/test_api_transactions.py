"""The transaction coordinator's responses over the wire, version by version."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.api.admin_client import Admin

from headrace.base.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.testing.cluster import EmbeddedNode

ATTEMPTS_MAX = 200
_numbers = itertools.count()
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
TRANSIENT_ERRORS = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    settings = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
    with EmbeddedNode(settings) as running:
        admin = Admin(running.port)
        for key_type in (0, 1):
            admin.send_request(FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type))
        topic = CreateTopicsRequest.CreatableTopic(name="here", num_partitions=2, replication_factor=1)
        admin.send_request(CreateTopicsRequest(topics=[topic], timeout_ms=9000))
        yield running


@pytest.fixture
def admin(node: EmbeddedNode) -> Admin:
    return Admin(node.port)


def retry_transient_errors(send_request: Callable[..., Any]) -> Any:
    """Retry while the previous transaction is still ending, as clients do, and return the response."""
    for _ in range(ATTEMPTS_MAX):
        answer = send_request()
        if answer.error_code not in TRANSIENT_ERRORS:
            return answer
    raise AssertionError("it takes too long")


def init(admin: Admin, name: str, version: int = 5, **fields: Any) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=fields.pop("timeout", 60_000), **fields
    )
    return retry_transient_errors(lambda: admin.send_request(request, version))


def producer(admin: Admin) -> SimpleNamespace:
    name = f"id-{next(_numbers)}"
    made = init(admin, name)
    assert made.error_code == ErrorCode.NONE
    return SimpleNamespace(name=name, id=made.producer_id, epoch=made.producer_epoch)


def add(
    admin: Admin, identity: SimpleNamespace, *topic_partitions: Any, version: int = 3, verify_only: bool = False
) -> list[ErrorCode]:
    topics = [Topic(name=name, partitions=list(indexes)) for name, *indexes in topic_partitions]
    if version < 4:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.name,
            v3_and_below_producer_id=identity.id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        found = admin.send_request(request, version).results_by_topic_v3_and_below
    else:
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=identity.name,
            producer_id=identity.id,
            producer_epoch=identity.epoch,
            verify_only=verify_only,
            topics=topics,
        )
        [result] = admin.send_request(
            AddPartitionsToTxnRequest(transactions=[transaction]), version
        ).results_by_transaction
        assert result.transactional_id == identity.name
        found = result.topic_results
    return [ErrorCode(one.partition_error_code) for result in found for one in result.results_by_partition]


def end(
    admin: Admin, identity: SimpleNamespace, commit: bool = True, version: int = 5, again: bool = True
) -> EndTxnResponse:
    request = EndTxnRequest(
        transactional_id=identity.name, producer_id=identity.id, producer_epoch=identity.epoch, committed=commit
    )
    return (
        retry_transient_errors(lambda: admin.send_request(request, version))
        if again
        else admin.send_request(request, version)
    )


def describe(admin: Admin, name: str) -> DescribeTransactionsResponse.TransactionState:
    return admin.send_request(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states[0]


@pytest.mark.parametrize("version", range(6))
def test_reinitializing_a_producer_increments_its_epoch(admin: Admin, version: int) -> None:
    name = f"id-{next(_numbers)}"
    first, second = init(admin, name, version), init(admin, name, version)
    assert (first.error_code, first.producer_epoch, second.producer_epoch) == (ErrorCode.NONE, 0, 1)
    assert first.producer_id == second.producer_id


def test_init_producer_id_refuses_empty_ids_long_timeouts_and_unknown_producer_ids(admin: Admin) -> None:
    assert init(admin, "").error_code == ErrorCode.INVALID_REQUEST
    assert init(admin, "slow", timeout=900_001).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    identity = producer(admin)
    fenced = init(admin, identity.name, producer_id=identity.id + 1, producer_epoch=0)
    assert fenced.error_code == ErrorCode.PRODUCER_FENCED and fenced.producer_id == fenced.producer_epoch == -1


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_to_txn_from_a_client_adds_all_partitions_or_none(admin: Admin, version: int) -> None:
    identity = producer(admin)
    mixed = add(admin, identity, ("here", 0, 7), ("nowhere", 0), version=version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert mixed == [ErrorCode.OPERATION_NOT_ATTEMPTED, unknown, unknown]
    assert describe(admin, identity.name).transaction_state == "Empty"
    assert add(admin, identity, ("here", 0, 1), version=version) == [ErrorCode.NONE] * 2
    found = describe(admin, identity.name)
    assert (found.transaction_state, [(one.topic, one.partitions) for one in found.topics]) == (
        "Ongoing",
        [("here", [0, 1])],
    )
    identity.epoch += 1
    stale = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert add(admin, identity, ("here", 0), version=version) == [stale]


def test_add_partitions_to_txn_from_a_leader_verifies_or_adds(admin: Admin) -> None:
    identity = producer(admin)
    assert add(admin, identity, ("here", 0), version=5, verify_only=True) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert add(admin, identity, ("here", 0), version=4, verify_only=True) == [ErrorCode.INVALID_TXN_STATE]
    assert add(admin, identity, ("here", 0), version=5) == [ErrorCode.NONE]
    assert add(admin, identity, ("here", 0), version=5, verify_only=True) == [ErrorCode.NONE]


def test_add_offsets_to_txn_adds_a_partition_of_the_offsets_topic(admin: Admin) -> None:
    identity = producer(admin)
    request = AddOffsetsToTxnRequest(
        transactional_id=identity.name, producer_id=identity.id, producer_epoch=identity.epoch, group_id="g"
    )
    for version in range(5):
        assert admin.send_request(request, version).error_code == ErrorCode.NONE
    assert [one.topic for one in describe(admin, identity.name).topics] == ["__consumer_offsets"]


def test_add_offsets_to_txn_succeeds_before_the_offsets_topic_exists() -> None:
    """Check the order clients use: they add the group and only then look up its coordinator, which creates the topic."""
    with EmbeddedNode({"offsets.topic.num.partitions": "5"}) as fresh:
        admin = Admin(fresh.port)
        admin.send_request(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1))
        identity = producer(admin)
        request = AddOffsetsToTxnRequest(identity.name, identity.id, identity.epoch, "g")
        assert admin.send_request(request, 3).error_code == ErrorCode.NONE
        [added] = describe(admin, identity.name).topics
        assert (added.topic, added.partitions) == ("__consumer_offsets", [ord("g") % 5])
        assert end(admin, identity, commit=False, version=4).error_code == ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_end_txn_is_idempotent_and_completes_the_transaction(admin: Admin, version: int, commit: bool) -> None:
    identity = producer(admin)
    assert add(admin, identity, ("here", 0)) == [ErrorCode.NONE]
    ended = end(admin, identity, commit, version)
    assert ended.error_code == ErrorCode.NONE
    if version >= 5:
        assert (ended.producer_id, ended.producer_epoch) == (identity.id, identity.epoch + 1)
    again = end(admin, identity, commit, version)
    assert again.error_code == ErrorCode.NONE and again.producer_epoch == ended.producer_epoch
    assert end(admin, identity, not commit, version).error_code == ErrorCode.INVALID_TXN_STATE
    requested = "CompleteCommit" if commit else "CompleteAbort"
    assert describe(admin, identity.name).transaction_state == requested and describe(admin, identity.name).topics == []


def test_end_txn_without_an_open_transaction_or_known_producer_is_refused(admin: Admin) -> None:
    identity = producer(admin)
    assert end(admin, identity, version=4).error_code == ErrorCode.INVALID_TXN_STATE
    nobody = SimpleNamespace(name="nobody", id=1, epoch=0)
    assert end(admin, nobody).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_list_transactions_filters_by_state_producer_duration_and_pattern(admin: Admin) -> None:
    open_one, empty = producer(admin), producer(admin)
    add(admin, open_one, ("here", 0))

    def listed(version: int = 2, **filters: Any) -> tuple[set[str], list[str]]:
        answer = admin.send_request(ListTransactionsRequest(**filters), version)
        return {one.transactional_id for one in answer.transaction_states}, answer.unknown_state_filters

    assert {open_one.name, empty.name} <= listed()[0]
    ongoing, unknown = listed(state_filters=["Ongoing", "Sleeping"])
    assert open_one.name in ongoing and empty.name not in ongoing and unknown == ["Sleeping"]
    assert listed(producer_id_filters=[empty.id])[0] == {empty.name}
    assert listed(duration_filter=60_000)[0] & {open_one.name, empty.name} == {empty.name}
    assert listed(transactional_id_pattern=f"{open_one.name[:-1]}.")[0] >= {open_one.name}
    bad = admin.send_request(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    unknown_one = describe(admin, "nobody")
    assert unknown_one.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
