"""Groups on the command line, with a real consumer: lag in records and time, every kind of reset, deletion."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_line import CommandLine

from headrace.base.errors import ConfigError
from headrace.cli.commands.reset_offsets import read_plan
from headrace.cli.output import format_duration, show_table
from headrace.cli.times import parse_datetime
from headrace.testing.cluster import EmbeddedNode

confluent_kafka = pytest.importorskip("confluent_kafka")
RECORDS = 30
LONG_AGO_MS = 1_700_000_000_000


@pytest.fixture
def group(headrace_node: EmbeddedNode) -> tuple[CommandLine, str, str]:
    """Create a group that has read 14 of 30 records: 10 and 4 in two of three partitions, with a record each minute."""
    name = f"group-{time.monotonic_ns()}"
    topic = f"orders-{time.monotonic_ns()}"
    headrace = CommandLine(headrace_node.bootstrap)
    headrace("topics", "create", topic, "--partitions", "3")
    producer = confluent_kafka.Producer({"bootstrap.servers": headrace_node.bootstrap, "log_level": 2})
    for number in range(RECORDS):
        producer.produce(topic, b"x", partition=number % 3, timestamp=LONG_AGO_MS + 60_000 * number)
    assert producer.flush(20) == 0
    offsets = [confluent_kafka.TopicPartition(topic, 0, 10), confluent_kafka.TopicPartition(topic, 1, 4)]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": headrace_node.bootstrap, "group.id": name, "log_level": 2, "enable.auto.commit": False}
    )
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return headrace, name, topic


def reset_result(headrace: CommandLine, *arguments: Any) -> dict[int, tuple[int | None, int]]:
    found = json.loads(headrace("groups", "reset-offsets", *arguments, "--json"))
    return {one["partition"]: (one["before"], one["after"]) for one in found}


def test_groups_describe_shows_lag_in_records_and_time(group: tuple[CommandLine, str, str]) -> None:
    headrace, name, topic = group
    (found,) = json.loads(headrace("groups", "describe", name, "--json"))
    by_partition = {one["partition"]: one for one in found["partitions"]}
    assert found["state"] == "Empty" and by_partition.keys() == {0, 1}
    assert (by_partition[0]["lag"], by_partition[0]["lag_ms"]) == (0, 0)
    age = time.time() * 1000 - (LONG_AGO_MS + 60_000 * (4 * 3 + 1))  # age of the fifth record of partition 1
    assert by_partition[1]["lag"] == 6 and abs(by_partition[1]["lag_ms"] - age) < 60_000
    table = headrace("groups", "describe", name)
    assert topic in table and " d" in table
    assert name in headrace("groups", "list", "--state", "Empty") and name not in headrace(
        "groups", "list", "--state", "Stable"
    )


def test_an_active_member_is_shown_and_prevents_reset_and_deletion(
    group: tuple[CommandLine, str, str], headrace_node: EmbeddedNode
) -> None:
    headrace, name, topic = group
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": headrace_node.bootstrap, "group.id": name, "log_level": 2, "client.id": "me"}
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 30
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    shown = headrace("groups", "members", name)
    assert f"{topic}:0,1,2" in shown and "me" in shown
    assert "Stable" in headrace("groups", "describe", name, "--state")
    assert "NON_EMPTY_GROUP" in headrace("groups", "reset-offsets", name, "--all-topics", "--to-latest", fails=True)
    assert "NON_EMPTY_GROUP" in headrace("groups", "delete", name, fails=True)
    consumer.close()


@pytest.mark.parametrize(
    ("reset_option", "expected"),
    [
        (["--to-earliest"], (0, 0)),
        (["--to-latest"], (10, 10)),
        (["--to-current"], (10, 4)),
        (["--to-offset", "7"], (7, 7)),
        (["--to-offset", "99"], (10, 10)),
        (["--shift-by", "-3"], (7, 1)),
        (["--shift-by", "-30"], (0, 0)),
        (["--to-datetime", "2023-11-14T22:25:00"], (4, 4)),
        (["--by-duration", "P1D"], (10, 10)),
        (["--by-duration", "P30000D"], (0, 0)),
    ],
)
def test_every_reset_option_plans_the_expected_offsets(
    group: tuple[CommandLine, str, str], reset_option: list[str], expected: tuple[int, int]
) -> None:
    headrace, name, _ = group
    assert reset_result(headrace, name, "--all-topics", *reset_option) == {0: (10, expected[0]), 1: (4, expected[1])}
    assert reset_result(headrace, name, "--all-topics", "--to-current") == {0: (10, 10), 1: (4, 4)}, "it was a dry run"


def test_an_exported_reset_plan_is_executed_from_a_file(group: tuple[CommandLine, str, str], tmp_path: Path) -> None:
    headrace, name, topic = group
    plan = tmp_path / "plan.csv"
    plan.write_text(
        headrace("groups", "reset-offsets", name, "--topic", f"{topic}:1,2", "--to-offset", "5", "--export")
    )
    assert plan.read_text() == f"{topic},1,5\n{topic},2,5\n"
    assert reset_result(headrace, name, "--from-file", plan, "--execute") == {1: (4, 5), 2: (None, 5)}
    assert reset_result(headrace, name, "--all-topics", "--to-current") == {0: (10, 10), 1: (5, 5), 2: (5, 5)}


def test_offsets_and_groups_are_deleted(group: tuple[CommandLine, str, str]) -> None:
    headrace, name, topic = group
    assert "deleted the offset" in headrace("groups", "delete-offsets", name, "--topic", f"{topic}:0")
    assert reset_result(headrace, name, "--all-topics", "--to-current") == {1: (4, 4)}
    assert headrace("groups", "delete", name) == f"deleted group {name}\n"
    assert "GROUP_ID_NOT_FOUND" in headrace("groups", "describe", name, fails=True)


def test_ambiguous_arguments_and_invalid_reset_plans_are_refused(headrace_node: EmbeddedNode, tmp_path: Path) -> None:
    headrace = CommandLine(headrace_node.bootstrap)
    assert "give exactly one of" in headrace("groups", "reset-offsets", "g", "--all-topics", fails=True)
    assert "give exactly one of" in headrace("groups", "reset-offsets", "g", "--to-latest", "--to-earliest", fails=True)
    assert "either --topic or --all-topics" in headrace("groups", "reset-offsets", "g", "--to-latest", fails=True)
    assert "either group ids or --all-groups" in headrace("groups", "describe", fails=True)
    bad = tmp_path / "bad.csv"
    bad.write_text("t,0,1\nt,x\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_plan(bad)
    with pytest.raises(ConfigError, match="--to-datetime"):
        parse_datetime("--to-datetime", "yesterday")


def test_durations_are_written_in_their_two_largest_units() -> None:
    lengths = {
        None: None, 0: "0 ms", 40: "40 ms", 1500: "1.5 s", 12_345: "12.3 s", 59_999: "1 min", 60_000: "1 min", 90_000: "1 min 30 s",
        7_200_000: "2 h", 11_520_000: "3 h 12 min", 200_000_000: "2 d 7 h", -1500: "-1.5 s",
    }  # fmt: skip
    assert {length: format_duration(length) for length in lengths} == lengths


@pytest.mark.parametrize("columns", [80, 50])
def test_a_group_id_is_not_wrapped_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    group = "spark-headrace-shop.enriched_orders-3f2a9c1b"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    show_table(("group", "type", "state", "protocol"), [(group, "classic", "PreparingRebalance", "consumer")])
    shown = capsys.readouterr().out
    assert group in shown and ("│" in shown) == (columns == 80)
    if columns == 80:
        assert len(shown.splitlines()[0]) <= columns
