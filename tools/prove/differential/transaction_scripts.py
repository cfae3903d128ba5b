"""Transactional producers that send requests twice, late, too early, and as another producer."""

from __future__ import annotations

from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from tools.prove.differential.scripts import TRANSACTION_KEY, Script, ScriptRun, Step, Steps, code, find, is_available

TIMEOUT_MS = 60_000
TOPIC = "plain"
EPOCHS_VERSION, OLD_VERSION = 5, 4  # versions of EndTxn: with a new epoch for each transaction, and without
ADD_VERSION = 3
UNKNOWN_ID = 987_654


def init(name: str, producer_id: int = -1, epoch: int = -1, version: int = 4, timeout_ms: int = TIMEOUT_MS) -> Step:
    message = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=producer_id, producer_epoch=epoch
    )
    return Step(f"init as {epoch}", message, version, is_available(code))


def end(name: str, producer_id: int, epoch: int, commit: bool, version: int = EPOCHS_VERSION) -> Step:
    word = "commit" if commit else "abort"
    return Step(
        f"{word} at {epoch} v{version}", EndTxnRequest(name, producer_id, epoch, commit), version, is_available(code)
    )


def add(name: str, producer_id: int, epoch: int, *partitions: int, topic: str = TOPIC) -> Step:
    message = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(topic, list(partitions))],
    )
    return Step(f"add at {epoch}", message, ADD_VERSION, is_available(_added))


def _added(response: AddPartitionsToTxnResponse) -> int:
    topics = response.results_by_topic_v3_and_below
    return max(one.partition_error_code for topic in topics for one in topic.results_by_partition)


def described(name: str, state: str) -> Step:
    def is_in_state(response: DescribeTransactionsResponse) -> bool:
        return response.transaction_states[0].transaction_state == state

    return Step(f"until {state}", DescribeTransactionsRequest([name]), 0, is_in_state)


def transactions_with_epochs(run: ScriptRun) -> Steps:
    """End transactions with EndTxn 5: every end bumps the producer's epoch."""
    name = "epochs"
    yield find([name], TRANSACTION_KEY)
    producer = run.name_id((yield init(name)).producer_id, "producer")
    yield end(name, producer, 0, True)  # no transaction is open
    yield end(name, producer, 0, False)
    yield end(name, producer, 0, False)  # a retry
    yield end(name, producer, 0, True)
    yield end(name, UNKNOWN_ID, 1, False)
    yield end(name, producer, 5, False)
    yield add(name, producer, 0, 0)
    yield add(name, UNKNOWN_ID, 1, 0)
    yield add(name, producer, 1, 0, 1)
    yield add(name, producer, 1, 1)
    yield add(name, producer, 1, 99)
    yield end(name, producer, 1, True)
    yield end(name, producer, 2, False)  # at once: the markers may not be written yet
    yield described(name, "CompleteAbort")
    yield end(name, producer, 2, False)
    yield end(name, producer, 1, True)
    yield init(name, producer, 3)
    yield init(name, producer, 3)  # as if its response had been lost
    yield init(name, producer, 1)
    yield end("unknown-id", producer, 0, True)
    yield end("", producer, 0, True)


def transactions_of_one_epoch(run: ScriptRun) -> Steps:
    """End transactions with EndTxn 4: a producer keeps its epoch."""
    name = "one-epoch"
    yield find([name], TRANSACTION_KEY)
    producer = run.name_id((yield init(name)).producer_id, "producer")
    for commit in (True, False):
        yield end(name, producer, 0, commit, OLD_VERSION)
    for commit in (True, False):
        yield add(name, producer, 0, 0)
        yield end(name, producer, 0, commit, OLD_VERSION)
        yield described(name, "CompleteCommit" if commit else "CompleteAbort")
        yield end(name, producer, 0, commit, OLD_VERSION)
        yield end(name, producer, 0, not commit, OLD_VERSION)
        yield end(name, producer, 1, commit, OLD_VERSION)
        yield end(name, UNKNOWN_ID, 0, commit, OLD_VERSION)


def transactions_over_a_zombie(run: ScriptRun) -> Steps:
    name = "zombie"
    yield find([name], TRANSACTION_KEY)
    producer = run.name_id((yield init(name)).producer_id, "producer")
    yield add(name, producer, 0, 0)
    yield init(name)  # aborts the open transaction and retries
    for version in (1, 2, OLD_VERSION, EPOCHS_VERSION):
        yield end(name, producer, 0, True, version)
    yield add(name, producer, 0, 0)
    for version in (3, 4):
        yield init(name, producer, 0, version)
    yield init(name, UNKNOWN_ID, 0)
    yield init(name, timeout_ms=0)
    yield init(name, timeout_ms=2**31 - 1)


TRANSACTION_SCRIPTS: tuple[Script, ...] = (
    transactions_with_epochs,
    transactions_of_one_epoch,
    transactions_over_a_zombie,
)
