"""Calls of Kafka's tools about transactions during a scripted story, compared with our own command line."""

from __future__ import annotations

import json
import sys
from typing import Any

from testkit.kafka_peer import tool

from tools.prove.commands import run
from tools.prove.kafka_tools.comparison import Act, Script, Step, step
from tools.prove.kafka_tools.transaction_scenario import Story, settled

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
REMEMBERED = (
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


# --- our own command line compared with Kafka's tool


def commands_agree(bootstrap: str) -> str:
    """Compare the fields that both print and return the number of rows."""
    producers_of = ("--topic", "accounts", "--partition", "2")
    rows = _agree(
        "list",
        _theirs(bootstrap, "list"),
        [[one[name] for name in LISTED] for one in _ours(bootstrap, "list")],
    )
    rows += _agree(
        "describe",
        [
            [*row[:6], ",".join(sorted(row[-1].split(",")))]
            for row in _theirs(bootstrap, "describe", "--transactional-id", "old-open")
        ],
        [
            [
                *(one[name] for name in DESCRIBED),
                ",".join(f"{at['topic']}-{at['partition']}" for at in one["partitions"]),
            ]
            for one in _ours(bootstrap, "describe", "old-open")
        ],
    )
    rows += _agree(
        "producers",
        _theirs(bootstrap, "describe-producers", *producers_of),
        [[one[name] for name in REMEMBERED] for one in _ours(bootstrap, "producers", *producers_of)],
    )
    rows += _agree(
        "find-hanging",
        [row[:-1] for row in _theirs(bootstrap, "find-hanging", "--broker-id", "1")],
        [[one[name] for name in HANGING] for one in _ours(bootstrap, "find-hanging", "--broker-id", "1")],
    )
    return f"{rows} rows"


def _agree(verb: str, theirs: list[list[str]], ours: list[list[object]]) -> int:
    said = sorted(list(map(str, row)) for row in ours)
    assert sorted(theirs) == said, f"transactions {verb}: Kafka's tool says {sorted(theirs)}, ours {said}"
    assert said, f"transactions {verb} says nothing"
    return len(said)


def _theirs(bootstrap: str, *arguments: str) -> list[list[str]]:
    """Return the rows of the table without its header."""
    done = tool("transactions", "--bootstrap-server", bootstrap, *arguments)
    assert done.returncode == 0, done.stderr.decode()
    return [line.split() for line in done.stdout.decode().splitlines()[1:] if line.strip()]


def _ours(bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "headrace", "transactions", *arguments, "--json", "--bootstrap-server", bootstrap]
    found: list[dict[str, Any]] = json.loads(run(command, timeout_s=COMMAND_S_MAX).stdout)
    return found


# --- the script


def in_order(line: str) -> str:
    """Sort the partitions of a transaction, which are a set: the last column of a table or a field of a record."""
    if not line.startswith("{"):
        front, _, places = line.rpartition(" ")
        return f"{front} {','.join(sorted(places.split(',')))}"
    record = json.loads(line)
    topics = (record["value"] or {"data": {}})["data"].get("transactionPartitions") or []
    topics.sort(key=lambda topic: topic["topic"])
    for topic in topics:
        topic["partitionIds"].sort()
    return json.dumps(record, separators=(",", ":"))


def script() -> Script:
    story = Story()
    return (
        step("topics --create --topic accounts --partitions 3 --replication-factor 1"),
        step("topics --create --topic audit --partitions 1 --replication-factor 1"),
        step("transactions list"),
        step("transactions describe --transactional-id absent"),
        Act("the story of transactions", story.tell),
        *_requested_steps(),
        step("configs --alter --entity-type brokers --entity-name 1 --add-config transaction.partition.verification.enable=false"),
        Act("two transactions that hang", story.hang),
        step("configs --alter --entity-type brokers --entity-name 1 --delete-config transaction.partition.verification.enable"),
        Act("headrace transactions beside Kafka's tool", commands_agree),
        *_hanging(),
        step("transactions forceTerminateTransaction --transactionalId old-open"),
        step("transactions forceTerminateTransaction --transactionalId new-open"),
        step("transactions forceTerminateTransaction --transactionalId old-commit"),
        step("transactions forceTerminateTransaction --transactionalId prepared"),
        Act("aborted everywhere", settled),
        step("transactions list", unordered=True),
        Act("open transactions go on", story.go_on),
        *_records(),
    )  # fmt: skip


def _requested_steps() -> tuple[Step, ...]:
    ids = ("old-commit", "old-fresh", "old-open", "new-offsets", "new-impatient", "new-going-on", "prepared")
    return (
        step("transactions list", unordered=True),
        step("transactions list --duration-filter -1", unordered=True),
        step("transactions list --duration-filter 1", unordered=True),
        step("transactions list --duration-filter 86400000", unordered=True),
        step("transactions list --transactional-id-pattern old-.*", unordered=True),
        step("transactions list --transactional-id-pattern old"),
        step("transactions list --transactional-id-pattern ["),
        *(step(f"transactions describe --transactional-id {name}", forget=OPEN_FOR, tidy=in_order) for name in ids),
        *(step(f"transactions describe-producers --topic accounts --partition {at}", unordered=True) for at in range(3)),
        step("transactions describe-producers --topic audit --partition 0 --broker-id 1", unordered=True),
        step("transactions find-hanging"),
        step("transactions find-hanging --broker-id 1"),
        step("transactions find-hanging --partition 1"),
    )  # fmt: skip


def _hanging() -> tuple[Step, ...]:
    abort = "transactions abort --topic accounts --partition 2"
    return (
        step("transactions find-hanging --broker-id 1", unordered=True, forget=OPEN_FOR),
        step("transactions find-hanging --topic accounts", forget=OPEN_FOR),
        step("transactions find-hanging --topic accounts --partition 0", forget=OPEN_FOR),
        step("transactions find-hanging --topic audit --max-transaction-timeout 30", forget=OPEN_FOR),
        step("transactions find-hanging --topic audit --max-transaction-timeout 2000000000", forget=OPEN_FOR),
        step(f"{CONSUME} 5000 --topic audit --isolation-level read_committed", keep=READ),
        step(abort),
        step(f"{abort} --start-offset 99"),
        step(f"{abort} --start-offset {HANGING_OFFSET}"),
        step("transactions abort --topic audit --partition 0 --producer-id 4000000 --producer-epoch 2 --coordinator-epoch 0"),
        step("transactions abort --topic audit --partition 0 --producer-id 4000000 --producer-epoch 3 --coordinator-epoch 0"),
        step("transactions find-hanging --broker-id 1", forget=OPEN_FOR),
        step("transactions describe-producers --topic accounts --partition 2", unordered=True),
        step("transactions describe-producers --topic audit --partition 0", unordered=True),
    )  # fmt: skip


def _records() -> tuple[Step, ...]:
    return (
        *(
            step(f"{CONSUME} 5000 --topic {topic} --isolation-level read_{what}", keep=READ, unordered=True)
            for topic in ("accounts", "audit")
            for what in ("committed", "uncommitted")
        ),
        step("get-offsets --topic accounts"),
        step("transactions list", unordered=True),
        step("consumer-groups --describe --group ledger", unordered=True),
        step("consumer-groups --describe --group undecided", unordered=True),
        step(f"{CONSUME} 10000 --topic __consumer_offsets --formatter {OFFSETS} --isolation-level read_committed", unordered=True),
        step(f"{CONSUME} 10000 --topic __consumer_offsets --formatter {OFFSETS}", unordered=True),
        step(f"{CONSUME} 10000 --topic __transaction_state --formatter {STATE}", unordered=True, keep="^[{]", tidy=in_order),
    )  # fmt: skip
