"""The transaction coordinator's responses over the wire, version by version."""

import itertools
from types import SimpleNamespace

import pytest
from admin_client import Admin

from headrace.base.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.testing.cluster import EmbeddedNode

ATTEMPTS_MAX = 200
_numbers = itertools.count()
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
PASSING = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


@pytest.fixture(scope="module")
def node():
    settings = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
    with EmbeddedNode(settings) as running:
        admin = Admin(running.port)
        for key_type in (0, 1):
            admin.ask(FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type))
        topic = CreateTopicsRequest.CreatableTopic(name="here", num_partitions=2, replication_factor=1)
        admin.ask(CreateTopicsRequest(topics=[topic], timeout_ms=9000))
        yield running


@pytest.fixture
def admin(node):
    return Admin(node.port)


def settled(ask):
    """Retry while the previous transaction is still ending, as clients do, and return the response."""
    for _ in range(ATTEMPTS_MAX):
        answer = ask()
        if answer.error_code not in PASSING:
            return answer
    raise AssertionError("it takes too long")


def init(admin, name, version=5, **fields):
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=fields.pop("timeout", 60_000), **fields
    )
    return settled(lambda: admin.ask(request, version))


def producer(admin):
    name = f"id-{next(_numbers)}"
    made = init(admin, name)
    assert made.error_code == ErrorCode.NONE
    return SimpleNamespace(name=name, id=made.producer_id, epoch=made.producer_epoch)


def add(admin, who, *places, version=3, verify_only=False):
    topics = [Topic(name=name, partitions=list(indexes)) for name, *indexes in places]
    if version < 4:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=who.name,
            v3_and_below_producer_id=who.id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=topics,
        )
        found = admin.ask(request, version).results_by_topic_v3_and_below
    else:
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=who.name,
            producer_id=who.id,
            producer_epoch=who.epoch,
            verify_only=verify_only,
            topics=topics,
        )
        [result] = admin.ask(AddPartitionsToTxnRequest(transactions=[transaction]), version).results_by_transaction
        assert result.transactional_id == who.name
        found = result.topic_results
    return [ErrorCode(one.partition_error_code) for result in found for one in result.results_by_partition]


def end(admin, who, commit=True, version=5, again=True):
    request = EndTxnRequest(transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, committed=commit)
    return settled(lambda: admin.ask(request, version)) if again else admin.ask(request, version)


def describe(admin, name):
    return admin.ask(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states[0]


@pytest.mark.parametrize("version", range(6))
def test_a_producer_comes_again_with_the_next_epoch(admin, version):
    name = f"id-{next(_numbers)}"
    first, second = init(admin, name, version), init(admin, name, version)
    assert (first.error_code, first.producer_epoch, second.producer_epoch) == (ErrorCode.NONE, 0, 1)
    assert first.producer_id == second.producer_id


def test_what_is_wrong_with_a_producer_is_said(admin):
    assert init(admin, "").error_code == ErrorCode.INVALID_REQUEST
    assert init(admin, "slow", timeout=900_001).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    who = producer(admin)
    fenced = init(admin, who.name, producer_id=who.id + 1, producer_epoch=0)
    assert fenced.error_code == ErrorCode.PRODUCER_FENCED and fenced.producer_id == fenced.producer_epoch == -1


@pytest.mark.parametrize("version", range(4))
def test_a_client_adds_all_partitions_or_none(admin, version):
    who = producer(admin)
    mixed = add(admin, who, ("here", 0, 7), ("nowhere", 0), version=version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert mixed == [ErrorCode.OPERATION_NOT_ATTEMPTED, unknown, unknown]
    assert describe(admin, who.name).transaction_state == "Empty"
    assert add(admin, who, ("here", 0, 1), version=version) == [ErrorCode.NONE] * 2
    found = describe(admin, who.name)
    assert (found.transaction_state, [(one.topic, one.partitions) for one in found.topics]) == (
        "Ongoing",
        [("here", [0, 1])],
    )
    who.epoch += 1
    stale = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert add(admin, who, ("here", 0), version=version) == [stale]


def test_a_leader_verifies_or_adds(admin):
    who = producer(admin)
    assert add(admin, who, ("here", 0), version=5, verify_only=True) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert add(admin, who, ("here", 0), version=4, verify_only=True) == [ErrorCode.INVALID_TXN_STATE]
    assert add(admin, who, ("here", 0), version=5) == [ErrorCode.NONE]
    assert add(admin, who, ("here", 0), version=5, verify_only=True) == [ErrorCode.NONE]


def test_offsets_of_a_group_are_a_partition_like_any_other(admin):
    who = producer(admin)
    request = AddOffsetsToTxnRequest(
        transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, group_id="g"
    )
    for version in range(5):
        assert admin.ask(request, version).error_code == ErrorCode.NONE
    assert [one.topic for one in describe(admin, who.name).topics] == ["__consumer_offsets"]


def test_offsets_of_the_first_group_of_all_do_not_wait_for_its_coordinator():
    """Check the order clients use: they add the group and only then look up its coordinator, which creates the topic."""
    with EmbeddedNode({"offsets.topic.num.partitions": "5"}) as fresh:
        admin = Admin(fresh.port)
        admin.ask(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1))
        who = producer(admin)
        request = AddOffsetsToTxnRequest(who.name, who.id, who.epoch, "g")
        assert admin.ask(request, 3).error_code == ErrorCode.NONE
        [added] = describe(admin, who.name).topics
        assert (added.topic, added.partitions) == ("__consumer_offsets", [ord("g") % 5])
        assert end(admin, who, commit=False, version=4).error_code == ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_an_end_and_what_comes_of_it(admin, version, commit):
    who = producer(admin)
    assert add(admin, who, ("here", 0)) == [ErrorCode.NONE]
    ended = end(admin, who, commit, version)
    assert ended.error_code == ErrorCode.NONE
    if version >= 5:
        assert (ended.producer_id, ended.producer_epoch) == (who.id, who.epoch + 1)
    again = end(admin, who, commit, version)
    assert again.error_code == ErrorCode.NONE and again.producer_epoch == ended.producer_epoch
    assert end(admin, who, not commit, version).error_code == ErrorCode.INVALID_TXN_STATE
    wanted = "CompleteCommit" if commit else "CompleteAbort"
    assert describe(admin, who.name).transaction_state == wanted and describe(admin, who.name).topics == []


def test_nothing_can_be_committed_where_nothing_was_begun(admin):
    who = producer(admin)
    assert end(admin, who, version=4).error_code == ErrorCode.INVALID_TXN_STATE
    nobody = SimpleNamespace(name="nobody", id=1, epoch=0)
    assert end(admin, nobody).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_transactions_are_listed_by_state_producer_and_name(admin):
    open_one, empty = producer(admin), producer(admin)
    add(admin, open_one, ("here", 0))

    def listed(version=2, **filters):
        answer = admin.ask(ListTransactionsRequest(**filters), version)
        return {one.transactional_id for one in answer.transaction_states}, answer.unknown_state_filters

    assert {open_one.name, empty.name} <= listed()[0]
    ongoing, unknown = listed(state_filters=["Ongoing", "Sleeping"])
    assert open_one.name in ongoing and empty.name not in ongoing and unknown == ["Sleeping"]
    assert listed(producer_id_filters=[empty.id])[0] == {empty.name}
    assert listed(duration_filter=60_000)[0] & {open_one.name, empty.name} == {empty.name}
    assert listed(transactional_id_pattern=f"{open_one.name[:-1]}.")[0] >= {open_one.name}
    bad = admin.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    unknown_one = describe(admin, "nobody")
    assert unknown_one.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
