"""Calls of Kafka's tools about transactions in every state, also compared with `headrace transactions`."""

from __future__ import annotations

import json
import sys
from typing import Any

from testkit.kafka_peer import tool

from tools.prove.commands import run
from tools.prove.kafka_tools.comparison import Action, Script, Step, call
from tools.prove.kafka_tools.transaction_scenario import TransactionScenario, wait_until_settled

SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.two.phase.commit.enable": "true",
    "unstable.api.versions.enable": "true",  # for the request field that enables two-phase commit
}
COMMAND_S_MAX = 60.0
HANGING_OFFSET = 4  # start of the hanging transaction of accounts-2

# The columns of Kafka's tables, with our names.
LISTED = ("transactional_id", "coordinator", "producer_id", "state")
DESCRIBED = ("coordinator", "transactional_id", "producer_id", "producer_epoch", "state", "timeout_ms")
PRODUCERS = (
    "producer_id",
    "producer_epoch",
    "coordinator_epoch",
    "last_sequence",
    "last_timestamp_ms",
    "start_offset",
)
HANGING = (
    "topic",
    "partition",
    "producer_id",
    "producer_epoch",
    "coordinator_epoch",
    "start_offset",
    "last_timestamp_ms",
)

OPEN_FOR = (r"(?<=TIME )[0-9]+",)
READ = "^(?!Processed)"
CONSUME = "console-consumer --from-beginning --timeout-ms"
STATE = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
OFFSETS = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"


# --- `headrace transactions` compared with Kafka's tool


def commands_agree(bootstrap: str) -> str:
    """Compare the fields that both print and return the number of rows."""
    producers_of = ("--topic", "accounts", "--partition", "2")
    rows = _compare_rows(
        "list",
        _kafka_rows(bootstrap, "list"),
        [[one[name] for name in LISTED] for one in _headrace_rows(bootstrap, "list")],
    )
    rows += _compare_rows(
        "describe",
        [
            [*row[:6], ",".join(sorted(row[-1].split(",")))]
            for row in _kafka_rows(bootstrap, "describe", "--transactional-id", "old-open")
        ],
        [
            [
                *(one[name] for name in DESCRIBED),
                ",".join(f"{at['topic']}-{at['partition']}" for at in one["partitions"]),
            ]
            for one in _headrace_rows(bootstrap, "describe", "old-open")
        ],
    )
    rows += _compare_rows(
        "producers",
        _kafka_rows(bootstrap, "describe-producers", *producers_of),
        [[one[name] for name in PRODUCERS] for one in _headrace_rows(bootstrap, "producers", *producers_of)],
    )
    rows += _compare_rows(
        "find-hanging",
        [row[:-1] for row in _kafka_rows(bootstrap, "find-hanging", "--broker-id", "1")],
        [[one[name] for name in HANGING] for one in _headrace_rows(bootstrap, "find-hanging", "--broker-id", "1")],
    )
    return f"{rows} rows"


def _compare_rows(verb: str, theirs: list[list[str]], ours: list[list[object]]) -> int:
    rows = sorted(list(map(str, row)) for row in ours)
    assert sorted(theirs) == rows, f"transactions {verb}: Kafka's tool prints {sorted(theirs)}, headrace {rows}"
    assert rows, f"transactions {verb} prints no rows"
    return len(rows)


def _kafka_rows(bootstrap: str, *arguments: str) -> list[list[str]]:
    """Return the rows of the table without its header."""
    done = tool("transactions", "--bootstrap-server", bootstrap, *arguments)
    assert done.returncode == 0, done.stderr.decode()
    return [line.split() for line in done.stdout.decode().splitlines()[1:] if line.strip()]


def _headrace_rows(bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "headrace", "transactions", *arguments, "--json", "--bootstrap-server", bootstrap]
    found: list[dict[str, Any]] = json.loads(run(command, timeout_s=COMMAND_S_MAX).stdout)
    return found


# --- the script


def sort_partitions(line: str) -> str:
    """Sort the partitions of a transaction, which are a set: the last column of a table or a field of a record."""
    if not line.startswith("{"):
        front, _, partitions = line.rpartition(" ")
        return f"{front} {','.join(sorted(partitions.split(',')))}"
    record = json.loads(line)
    topics = (record["value"] or {"data": {}})["data"].get("transactionPartitions") or []
    topics.sort(key=lambda topic: topic["topic"])
    for topic in topics:
        topic["partitionIds"].sort()
    return json.dumps(record, separators=(",", ":"))


def script() -> Script:
    scenario = TransactionScenario()
    return (
        call("topics --create --topic accounts --partitions 3 --replication-factor 1"),
        call("topics --create --topic audit --partitions 1 --replication-factor 1"),
        call("transactions list"),
        call("transactions describe --transactional-id absent"),
        Action("transactions in every state", scenario.run),
        *_query_calls(),
        call("configs --alter --entity-type brokers --entity-name 1 --add-config transaction.partition.verification.enable=false"),
        Action("two transactions that hang", scenario.leave_hanging),
        call("configs --alter --entity-type brokers --entity-name 1 --delete-config transaction.partition.verification.enable"),
        Action("headrace transactions and Kafka's tool", commands_agree),
        *_hanging_calls(),
        call("transactions forceTerminateTransaction --transactionalId old-open"),
        call("transactions forceTerminateTransaction --transactionalId new-open"),
        call("transactions forceTerminateTransaction --transactionalId old-commit"),
        call("transactions forceTerminateTransaction --transactionalId prepared"),
        Action("all partitions have their abort markers", wait_until_settled),
        call("transactions list", unordered=True),
        Action("open transactions are committed", scenario.commit_open),
        *_record_calls(),
    )  # fmt: skip


def _query_calls() -> tuple[Step, ...]:
    ids = ("old-commit", "old-fresh", "old-open", "new-offsets", "new-impatient", "new-continuing", "prepared")
    return (
        call("transactions list", unordered=True),
        call("transactions list --duration-filter -1", unordered=True),
        call("transactions list --duration-filter 1", unordered=True),
        call("transactions list --duration-filter 86400000", unordered=True),
        call("transactions list --transactional-id-pattern old-.*", unordered=True),
        call("transactions list --transactional-id-pattern old"),
        call("transactions list --transactional-id-pattern ["),
        *(call(f"transactions describe --transactional-id {name}", forget=OPEN_FOR, tidy=sort_partitions) for name in ids),
        *(call(f"transactions describe-producers --topic accounts --partition {at}", unordered=True) for at in range(3)),
        call("transactions describe-producers --topic audit --partition 0 --broker-id 1", unordered=True),
        call("transactions find-hanging"),
        call("transactions find-hanging --broker-id 1"),
        call("transactions find-hanging --partition 1"),
    )  # fmt: skip


def _hanging_calls() -> tuple[Step, ...]:
    abort = "transactions abort --topic accounts --partition 2"
    return (
        call("transactions find-hanging --broker-id 1", unordered=True, forget=OPEN_FOR),
        call("transactions find-hanging --topic accounts", forget=OPEN_FOR),
        call("transactions find-hanging --topic accounts --partition 0", forget=OPEN_FOR),
        call("transactions find-hanging --topic audit --max-transaction-timeout 30", forget=OPEN_FOR),
        call("transactions find-hanging --topic audit --max-transaction-timeout 2000000000", forget=OPEN_FOR),
        call(f"{CONSUME} 5000 --topic audit --isolation-level read_committed", keep=READ),
        call(abort),
        call(f"{abort} --start-offset 99"),
        call(f"{abort} --start-offset {HANGING_OFFSET}"),
        call("transactions abort --topic audit --partition 0 --producer-id 4000000 --producer-epoch 2 --coordinator-epoch 0"),
        call("transactions abort --topic audit --partition 0 --producer-id 4000000 --producer-epoch 3 --coordinator-epoch 0"),
        call("transactions find-hanging --broker-id 1", forget=OPEN_FOR),
        call("transactions describe-producers --topic accounts --partition 2", unordered=True),
        call("transactions describe-producers --topic audit --partition 0", unordered=True),
    )  # fmt: skip


def _record_calls() -> tuple[Step, ...]:
    return (
        *(
            call(f"{CONSUME} 5000 --topic {topic} --isolation-level read_{what}", keep=READ, unordered=True)
            for topic in ("accounts", "audit")
            for what in ("committed", "uncommitted")
        ),
        call("get-offsets --topic accounts"),
        call("transactions list", unordered=True),
        call("consumer-groups --describe --group ledger", unordered=True),
        call("consumer-groups --describe --group undecided", unordered=True),
        call(f"{CONSUME} 10000 --topic __consumer_offsets --formatter {OFFSETS} --isolation-level read_committed", unordered=True),
        call(f"{CONSUME} 10000 --topic __consumer_offsets --formatter {OFFSETS}", unordered=True),
        call(f"{CONSUME} 10000 --topic __transaction_state --formatter {STATE}", unordered=True, keep="^[{]", tidy=sort_partitions),
    )  # fmt: skip
