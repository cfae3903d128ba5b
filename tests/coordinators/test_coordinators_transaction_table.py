"""Every state with every request: error code, producer and state afterwards, with transaction version 2 and before."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.coordinators.transaction_harness import FRESH, NAME, P0, P1, PRODUCER, TransactionHarness, add, end, init

from headrace.base.errors import ErrorCode
from headrace.coordinators.transaction.request import (
    AddPartitions,
    EndTransaction,
    MarkersWritten,
    TransactionEnded,
)
from headrace.coordinators.transaction.states import BEFORE, STORED, State

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING

EMPTY, ONGOING = State.EMPTY, State.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = State.PREPARE_COMMIT, State.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = State.COMPLETE_COMMIT, State.COMPLETE_ABORT
SAME = None

AT = 7  # epoch of the stored transaction
NOW, PAST, FUTURE = (PRODUCER, AT), (PRODUCER, AT - 1), (PRODUCER, AT + 1)
OTHER = (PRODUCER + 1, AT)

# state: error code, epoch and state afterwards. The same in all versions.
INIT = {
    EMPTY: (NONE, AT + 1, EMPTY),
    ONGOING: (BUSY, AT + 1, PREPARE_ABORT),
    PREPARE_COMMIT: (BUSY, AT, SAME),
    PREPARE_ABORT: (BUSY, AT, SAME),
    COMPLETE_COMMIT: (NONE, AT + 1, EMPTY),
    COMPLETE_ABORT: (NONE, AT + 1, EMPTY),
}
INIT_PAST = {state: (BUSY if "PREPARE" in state.name else FENCED, AT, SAME) for state in STORED}
INIT_OTHER = INIT_PAST
ADD = {state: (BUSY, AT, SAME) if "PREPARE" in state.name else (NONE, AT, ONGOING) for state in STORED}
# While markers are being written every producer must retry, as it may be the successor afterwards.
ADD_PAST = {state: (BUSY if "PREPARE" in state.name else FENCED, AT, SAME) for state in STORED}
ADD_OTHER = {state: (BUSY if "PREPARE" in state.name else MAPPING, AT, SAME) for state in STORED}
VERIFY = {state: (BUSY if "PREPARE" in state.name else NONE, AT, SAME) for state in STORED}

COMMIT_V1 = {
    EMPTY: (INVALID, AT, SAME),
    ONGOING: (NONE, AT, PREPARE_COMMIT),
    PREPARE_COMMIT: (BUSY, AT, SAME),
    PREPARE_ABORT: (BUSY, AT, SAME),
    COMPLETE_COMMIT: (NONE, AT, SAME),
    COMPLETE_ABORT: (INVALID, AT, SAME),
}
ABORT_V1 = {
    EMPTY: (INVALID, AT, SAME),
    ONGOING: (NONE, AT, PREPARE_ABORT),
    PREPARE_COMMIT: (BUSY, AT, SAME),
    PREPARE_ABORT: (BUSY, AT, SAME),
    COMPLETE_COMMIT: (INVALID, AT, SAME),
    COMPLETE_ABORT: (NONE, AT, SAME),
}
ALL_FENCED = dict.fromkeys(STORED, (FENCED, AT, SAME))
ALL_UNMAPPED = dict.fromkeys(STORED, (MAPPING, AT, SAME))

COMMIT_V2 = {
    EMPTY: (INVALID, AT, SAME),
    ONGOING: (NONE, AT + 1, PREPARE_COMMIT),
    PREPARE_COMMIT: (BUSY, AT, SAME),
    PREPARE_ABORT: (BUSY, AT, SAME),
    COMPLETE_COMMIT: (INVALID, AT, SAME),
    COMPLETE_ABORT: (INVALID, AT, SAME),
}
COMMIT_AGAIN_V2 = {
    EMPTY: (FENCED, AT, SAME),
    ONGOING: (FENCED, AT, SAME),
    PREPARE_COMMIT: (BUSY, AT, SAME),
    PREPARE_ABORT: (BUSY, AT, SAME),
    COMPLETE_COMMIT: (NONE, AT, SAME),
    COMPLETE_ABORT: (INVALID, AT, SAME),
}
ABORT_V2 = {
    EMPTY: (NONE, AT + 1, COMPLETE_ABORT),  # via PREPARE_ABORT, and at once: there are no markers to write
    ONGOING: (NONE, AT + 1, PREPARE_ABORT),
    PREPARE_COMMIT: (BUSY, AT, SAME),
    PREPARE_ABORT: (BUSY, AT, SAME),
    COMPLETE_COMMIT: (NONE, AT + 1, COMPLETE_ABORT),
    COMPLETE_ABORT: (NONE, AT + 1, COMPLETE_ABORT),
}
ABORT_AGAIN_V2 = {
    EMPTY: (FENCED, AT, SAME),
    ONGOING: (FENCED, AT, SAME),
    PREPARE_COMMIT: (BUSY, AT, SAME),
    PREPARE_ABORT: (BUSY, AT, SAME),
    COMPLETE_COMMIT: (INVALID, AT, SAME),
    COMPLETE_ABORT: (NONE, AT, SAME),
}

FENCED_V2, UNMAPPED_V2 = ADD_PAST, ADD_OTHER

Cases = dict[str, tuple[Any, Any]]  # by name: a request, and its outcomes by state
EVERY_VERSION: Cases = {
    "init": (init(), INIT),
    "init as itself": (init(NOW), INIT),
    "init as it was once": (init(PAST), INIT_PAST),
    "init as it never was": (init(FUTURE), INIT_PAST),
    "init as another": (init(OTHER), INIT_OTHER),
    "add": (add(NOW, P1), ADD),
    "add at an old epoch": (add(PAST, P1), ADD_PAST),
    "add at an epoch to come": (add(FUTURE, P1), ADD_PAST),
    "add as another": (add(OTHER, P1), ADD_OTHER),
    "verify": (add(NOW, P0, verify_only=True), VERIFY),
    "verify at an old epoch": (add(PAST, P0, verify_only=True), ALL_FENCED),
    "verify as another": (add(OTHER, P0, verify_only=True), ALL_UNMAPPED),
}
WITHOUT_BUMP: Cases = {
    "commit": (end(NOW, True, 0), COMMIT_V1),
    "abort": (end(NOW, False, 0), ABORT_V1),
    "commit at an old epoch": (end(PAST, True, 0), ALL_FENCED),
    "abort at an old epoch": (end(PAST, False, 0), ALL_FENCED),
    "commit at an epoch to come": (end(FUTURE, True, 0), ALL_FENCED),
    "abort as another": (end(OTHER, False, 0), ALL_UNMAPPED),
}
WITH_BUMP: Cases = {
    "commit v2": (end(NOW, True), COMMIT_V2),
    "commit again v2": (end(PAST, True), COMMIT_AGAIN_V2),
    "commit two epochs late": (end((PRODUCER, AT - 2), True), FENCED_V2),
    "commit at an epoch to come v2": (end(FUTURE, True), FENCED_V2),
    "commit as another v2": (end(OTHER, True), UNMAPPED_V2),
    "abort v2": (end(NOW, False), ABORT_V2),
    "abort again v2": (end(PAST, False), ABORT_AGAIN_V2),
    "abort two epochs late": (end((PRODUCER, AT - 2), False), FENCED_V2),
    "abort at an epoch to come v2": (end(FUTURE, False), FENCED_V2),
}
CASES = [
    pytest.param(version, state, request, *table[state], id=f"tv{version}-{state.text}-{name}")
    for version, requests in (
        (0, EVERY_VERSION | WITHOUT_BUMP),
        (1, EVERY_VERSION | WITHOUT_BUMP),
        (2, EVERY_VERSION | WITHOUT_BUMP | WITH_BUMP),  # requests of older clients behave as before
    )
    for name, (request, table) in requests.items()
    for state in sorted(STORED)
]


def harness_in(state: State, version: int = 2, **fields: Any) -> TransactionHarness:
    harness = TransactionHarness(version)
    holds = state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
    fields.setdefault("client_version", 2 if version == 2 else 0)
    harness.put(
        state=state,
        partitions=frozenset({P0} if holds else ()),
        started_ms=-1 if state is EMPTY else harness.now_ms,
        updated_ms=harness.now_ms,
        previous_producer_id=PRODUCER,
        **fields,
    )
    return harness


@pytest.mark.parametrize(
    "version, state, request_, code, epoch, after", [case.values for case in CASES], ids=[case.id for case in CASES]
)
def test_every_request_in_every_state_has_the_expected_outcome(
    version: int, state: State, request_: Any, code: ErrorCode, epoch: int, after: State | None
) -> None:
    harness = harness_in(state, version)
    before, written, sent = harness.found, len(harness.journal.written), len(harness.sent)
    assert harness.code(request_) is code
    assert harness.producer == (PRODUCER, epoch)
    assert harness.state is (after if after is not SAME else state)
    if after is SAME:
        assert harness.found == before and len(harness.journal.written) == written and len(harness.sent) == sent
    path = [state, *harness.states_written()[written:]]
    assert all(earlier in BEFORE[later] for earlier, later in pairwise(path))
    if harness.state in (PREPARE_COMMIT, PREPARE_ABORT) and after is not SAME:
        [markers] = harness.sent
        assert markers.partitions == (P0,) and markers.commit == (after is PREPARE_COMMIT)
        assert (markers.producer_id, markers.producer_epoch) == harness.producer


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("state", sorted(STORED))
def test_written_markers_complete_a_prepared_transaction(version: int, state: State) -> None:
    harness = harness_in(state, version)
    ends = {PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT}
    assert harness.write_markers() == (state in ends)
    assert harness.state is ends.get(state, state) and harness.producer == NOW
    if state in ends:
        assert not harness.found.partitions


@pytest.mark.parametrize("request_", [add(NOW), end(NOW), end(NOW, client_version=0)])
def test_an_unknown_transactional_id_fails_with_invalid_producer_id_mapping(
    request_: AddPartitions | EndTransaction,
) -> None:
    assert TransactionHarness().code(request_) is MAPPING


@pytest.mark.parametrize("expected", [(-1, -1), NOW])
def test_init_of_an_unknown_transactional_id_assigns_a_fresh_producer_id(expected: tuple[int, int]) -> None:
    harness = TransactionHarness()
    response = harness.execute(init(expected))
    assert (response.producer_id, response.producer_epoch) == (FRESH, 0) == harness.producer
    assert harness.state is EMPTY and harness.found.previous_producer_id == FRESH


@pytest.mark.parametrize(
    "request_", [init(), add(NOW), end(NOW), MarkersWritten(NAME, *NOW, 0)], ids=lambda request: type(request).__name__
)
def test_an_empty_transactional_id_fails_with_invalid_request(request_: Any) -> None:
    fields = {name: getattr(request_, name) for name in request_.__struct_fields__}
    assert TransactionHarness().code(type(request_)(**fields | {"transactional_id": ""})) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "request_, version, code",
    [
        (init(PAST, version=3), 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (init(PAST, version=4), 4, FENCED),
        (add(PAST, version=1), 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (add(PAST, version=2), 2, FENCED),
        (end(PAST, client_version=0, version=1), 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (end(PAST, client_version=0, version=2), 2, FENCED),
    ],
)
def test_older_request_versions_are_fenced_with_invalid_producer_epoch(
    request_: Any, version: int, code: ErrorCode
) -> None:
    assert harness_in(ONGOING).code(request_) is code


def test_before_version_2_the_end_of_a_transaction_bumps_no_epoch() -> None:
    harness = harness_in(ONGOING, 1)
    assert harness.execute(end(NOW, client_version=2)) == TransactionEnded()
    assert harness.producer == NOW and harness.sent[0].transaction_version == 0
