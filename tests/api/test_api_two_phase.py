"""Two-phase commit (KIP-939): InitProducerId 6, which is offered only if unstable API versions are enabled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.api.admin_client import Admin
from tests.api.transactional_client import RawProducer, fetch, init, read, read_stable

from headrace.api.transactions.init_producer_id import InitProducerIdApi
from headrace.base.errors import ErrorCode
from headrace.client.wire.connection import Disconnected
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.resources import Operation, Resource
from headrace.server.authority import DenyAll
from headrace.server.context import Peer, RequestContext
from headrace.testing.cluster import EmbeddedNode

BASE_SETTINGS = {"transaction.state.log.num.partitions": "2"}
UNSTABLE_VERSION_SETTINGS = {**BASE_SETTINGS, "unstable.api.versions.enable": "true"}
TWO_PHASE_SETTINGS = {
    **UNSTABLE_VERSION_SETTINGS,
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10",
}
FORBIDDEN = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TWO_PHASE = {"version": 6, "enable2_pc": True}
KEEP = {**TWO_PHASE, "keep_prepared_txn": True}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(TWO_PHASE_SETTINGS) as running:
        yield running


@pytest.fixture
def admin(node: EmbeddedNode) -> Admin:
    admin = Admin(node.port)
    admin.send_request(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1))
    return admin


@pytest.fixture
def name(admin: Admin) -> str:
    """Create a topic and return its name, which also serves as the transactional id."""
    name = f"both-{next(_numbers)}"
    admin.create(name, 2)
    return name


def prepared(admin: Admin, name: str) -> RawProducer:
    """Carry out the first phase: everything is written, and the caller notes which transaction it prepared."""
    producer = RawProducer(admin, name, **TWO_PHASE)
    for index in (0, 1):
        assert producer.send(name, index, b"x%d" % index)[0] is ErrorCode.NONE
    return producer


def describe(admin: Admin, name: str) -> DescribeTransactionsResponse.TransactionState:
    return admin.send_request(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states[0]


def init_producer_id_version_max(admin: Admin) -> int:
    answer = admin.send_request(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
    return {one.api_key: one.max_version for one in answer.api_keys}[ApiKey.INIT_PRODUCER_ID]


def test_init_producer_id_6_is_offered_only_with_unstable_versions_enabled(admin: Admin) -> None:
    assert init_producer_id_version_max(admin) == 6
    with EmbeddedNode(BASE_SETTINGS) as other:
        plain = Admin(other.port)
        assert init_producer_id_version_max(plain) == 5
        with pytest.raises(Disconnected):
            plain.send_request(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 6)


def test_disabling_two_phase_commit_forbids_only_two_phase_requests() -> None:
    with EmbeddedNode(UNSTABLE_VERSION_SETTINGS) as other:
        admin = Admin(other.port)
        admin.send_request(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1))
        assert init(admin, "x", **TWO_PHASE).error_code == FORBIDDEN
        refused = init(admin, "x", 6, keep_prepared_txn=True)
        assert refused.error_code == FORBIDDEN and refused.producer_epoch == -1
        made = init(admin, "x", 6)
        assert (made.error_code, made.producer_epoch) == (ErrorCode.NONE, 0)
        assert (made.ongoing_txn_producer_id, made.ongoing_txn_producer_epoch) == (-1, -1)


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_producer_can_commit_or_abort_a_prepared_transaction(admin: Admin, name: str, commit: bool) -> None:
    before = prepared(admin, name)
    assert read(admin, name) == []
    kept = init(admin, name, **KEEP)
    assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == before.identity
    identity = kept.producer_id, kept.producer_epoch
    assert identity == (before.id, before.epoch + 1)
    assert before.send_end_txn(not commit).error_code == ErrorCode.PRODUCER_FENCED
    assert before.send_end_txn(commit, identity).error_code == ErrorCode.NONE
    assert before.send_end_txn(commit, identity).error_code == ErrorCode.NONE  # a retry after a lost response
    assert [read_stable(admin, name, index) for index in (0, 1)] == ([[b"x0"], [b"x1"]] if commit else [[], []])


def test_partitions_cannot_be_added_to_a_kept_prepared_transaction(admin: Admin, name: str) -> None:
    prepared(admin, name)
    kept = init(admin, name, **KEEP)
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=[0])
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=kept.producer_id,
        v3_and_below_producer_epoch=kept.producer_epoch,
        v3_and_below_topics=[topic],
    )
    [result] = admin.send_request(request, 3).results_by_topic_v3_and_below
    assert result.results_by_partition[0].partition_error_code == ErrorCode.INVALID_TXN_STATE


def test_init_without_keep_prepared_txn_aborts_the_prepared_transaction(admin: Admin, name: str) -> None:
    before = prepared(admin, name)
    after = init(admin, name, **TWO_PHASE)
    assert (after.error_code, after.ongoing_txn_producer_id) == (ErrorCode.NONE, -1)
    assert after.producer_epoch == before.epoch + 2 and read_stable(admin, name) == []


def test_keep_prepared_txn_succeeds_without_an_ongoing_transaction(admin: Admin, name: str) -> None:
    made = init(admin, name, **KEEP)
    assert (made.error_code, made.producer_epoch, made.ongoing_txn_producer_id) == (ErrorCode.NONE, 0, -1)


def test_a_transaction_with_a_timeout_cannot_be_kept(admin: Admin, name: str) -> None:
    ordinary = RawProducer(admin, name)
    ordinary.send(name, 0, b"x")
    assert init(admin, name, **KEEP).error_code == ErrorCode.INVALID_TXN_STATE
    own = {"producer_id": ordinary.id, "producer_epoch": ordinary.epoch}
    assert init(admin, name, **KEEP, **own).error_code == ErrorCode.INVALID_REQUEST


def test_a_prepared_transaction_is_not_timed_out(admin: Admin, name: str) -> None:
    waiting = prepared(admin, name)
    other = f"{name}-ordinary"
    hasty = RawProducer(admin, other, timeout=1)
    hasty.send(name, 0, b"hasty")
    while describe(admin, other).transaction_state != "CompleteAbort":
        pass  # the sweep that expires this one has also checked the prepared one
    found = describe(admin, name)
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 2**31 - 1)
    waiting.end(True)
    assert read_stable(admin, name) == [b"x0"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_prepared_transaction_survives_restarts_of_the_node(
    node: EmbeddedNode, admin: Admin, name: str, how: str
) -> None:
    before = prepared(admin, name)
    getattr(node, how)()
    node.start()
    kept = init(admin, name, **KEEP)
    assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == before.identity
    getattr(node, how)()
    node.start()
    again = init(admin, name, **KEEP)
    assert (again.ongoing_txn_producer_id, again.ongoing_txn_producer_epoch) == before.identity
    assert before.send_end_txn(True, (kept.producer_id, kept.producer_epoch)).error_code == ErrorCode.PRODUCER_FENCED
    assert before.send_end_txn(True, (again.producer_id, again.producer_epoch)).error_code == ErrorCode.NONE
    assert [read_stable(admin, name, index) for index in (0, 1)] == [[b"x0"], [b"x1"]]
    assert fetch(admin, name).aborted_transactions == []


@pytest.mark.parametrize("two_phase_fields", [{"enable2_pc": True}, {"keep_prepared_txn": True}])
def test_two_phase_commit_requires_its_own_permission(two_phase_fields: dict[str, bool]) -> None:
    class Transactions:
        async def init(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
            return InitProducerIdResponse(producer_id=7)

    class Authority(DenyAll):
        def __init__(self, *operations: Operation) -> None:
            self.allowed = operations

        def allows(
            self, context: RequestContext, operation: Operation, resource: Resource, name: str, *, quietly: bool = False
        ) -> bool:
            return (resource, name) == (Resource.TRANSACTIONAL_ID, "tx") and operation in self.allowed

    api = InitProducerIdApi(cast(Any, SimpleNamespace()), cast(Any, Transactions()))

    def code(request: InitProducerIdRequest, *operations: Operation) -> ErrorCode | int:
        context = RequestContext(Peer("PLAINTEXT", "127.0.0.1", authority=Authority(*operations)), 22, 6, None)
        answer = api.init_producer_id(context, request)
        with pytest.raises(StopIteration) as ended:
            answer.send(None)
        return ended.value.value.error_code

    plain, request = (
        InitProducerIdRequest(transactional_id="tx"),
        InitProducerIdRequest(transactional_id="tx", **two_phase_fields),
    )
    assert code(plain, Operation.WRITE) == ErrorCode.NONE
    assert code(request, Operation.WRITE) == code(request, Operation.TWO_PHASE_COMMIT) == FORBIDDEN
    assert code(request, Operation.WRITE, Operation.TWO_PHASE_COMMIT) == ErrorCode.NONE
