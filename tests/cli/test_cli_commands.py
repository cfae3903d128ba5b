"""The command line with a real node: its output; errors are one clear line and exit code 1."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_line import CommandLine

from headrace import __version__
from headrace.cli.app import COMMANDS


def test_topics_are_created_described_altered_and_deleted(headrace: CommandLine) -> None:
    assert "3 partition(s)" in headrace(
        "topics", "create", "cli-life", "--partitions", "3", "--config", "retention.ms=5"
    )
    assert "TOPIC_ALREADY_EXISTS" in headrace("topics", "create", "cli-life", fails=True)
    assert "already exists" in headrace("topics", "create", "cli-life", "--if-not-exists")
    (described,) = json.loads(headrace("topics", "describe", "cli-life", "--json"))
    assert len(described["partitions"]) == 3 and described["options"] == {"retention.ms": "5"}
    assert "cli-life" in headrace("topics", "list") and "retention.ms=5" in headrace("topics", "describe", "cli-life")
    assert any(topic["name"] == "cli-life" for topic in json.loads(headrace("topics", "list", "--json")))
    headrace("topics", "alter", "--topic", "cli-life", "--partitions", "5")
    assert "INVALID_PARTITIONS" in headrace("topics", "alter", "cli-life", "--partitions", "4", fails=True)
    assert len(json.loads(headrace("topics", "describe", "cli-l.*", "--json"))[0]["partitions"]) == 5
    assert headrace("topics", "describe", "cli-life", "--unavailable-partitions") == ""
    headrace("topics", "delete", "cli-life")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in headrace("topics", "delete", "cli-life", fails=True)
    assert "does not exist" in headrace("topics", "delete", "cli-life", "--if-exists")
    assert "cli-life" not in headrace("topics", "list")


def test_an_invalid_topic_name_does_not_prevent_the_creation_of_other_topics(headrace: CommandLine) -> None:
    message = headrace("topics", "create", "cli-many-1", "no/such", "cli-many-2", fails=True)
    assert "created topic cli-many-1" in message and "INVALID_TOPIC_EXCEPTION" in message and "cli-many-2" in message
    assert "would create" in headrace("topics", "create", "cli-many-3", "--validate-only")
    headrace("topics", "create", "cli-many-4", "--replica-assignment", "1,1")
    names = [topic["name"] for topic in json.loads(headrace("topics", "list", "cli-many.*", "--json"))]
    assert names == ["cli-many-1", "cli-many-2", "cli-many-4"]
    headrace("topics", "delete", "cli-many-[0-9]")
    assert json.loads(headrace("topics", "list", "cli-many.*", "--json")) == []


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produced_lines_are_consumed_with_every_codec(headrace: CommandLine, codec: str) -> None:
    topic = f"cli-{codec}"
    headrace("produce", topic, "-z", codec, "-k", ":", "-H", "h=1", stdin="a:1\nb:2\nplain\n")
    shown = [json.loads(line) for line in headrace("consume", topic, "-e", "-f", "json").splitlines()]
    assert [(one["offset"], one["key"], one["value"]) for one in shown] == [
        (0, "a", "1"),
        (1, "b", "2"),
        (2, None, "plain"),
    ]
    assert shown[0]["headers"] == [["h", "1"]]
    assert headrace("consume", topic, "-o", "1", "-n", "1") == "2\n"
    assert headrace("consume", topic, "-o", "2", "-e", "-f", "key-value") == "\tplain\n"
    assert headrace("consume", topic, "-o", "latest", "-e") == ""


def records_of(
    headrace: CommandLine, topic: str, *options: Any
) -> list[tuple[str | None, str | None, list[list[Any]]]]:
    shown = map(json.loads, headrace("consume", topic, "-e", "-f", "json", *options).splitlines())
    return [(one["key"], one["value"], one["headers"]) for one in shown]


def test_produce_parses_tombstones_and_headers_from_lines(headrace: CommandLine) -> None:
    headrace("produce", "cli-nulls", "-k", ":", "-Z", stdin="a:1\na:\n\n")
    headrace(
        "produce", "cli-nulls", "-k", "=", "--null-marker", "NULL", "--parse-headers", "-H", "all=1",
        stdin="one:1,two:NULL\tk=NULL\n\tNULL=v\nempty:\t=\n",
    )  # fmt: skip
    assert records_of(headrace, "cli-nulls") == [
        ("a", "1", []),
        ("a", None, []),
        (None, None, []),
        ("k", None, [["all", "1"], ["one", "1"], ["two", None]]),
        (None, "v", [["all", "1"]]),
        ("", "", [["all", "1"], ["empty", ""]]),
    ]
    for line, message in (
        ("no headers\n", "line 1 has no '\\t'"),
        ("a\tv\n", "expected name:value"),
        (":v\tv\n", "line 1"),
    ):
        assert message in headrace("produce", "cli-nulls", "--parse-headers", stdin=line, fails=True)


def test_consume_starts_at_a_time_or_at_the_last_records(headrace: CommandLine) -> None:
    headrace("topics", "create", "cli-starts", "--partitions", "2")
    for partition in (0, 1):
        headrace("produce", "cli-starts", "-p", partition, stdin="".join(f"{partition}{n}\n" for n in range(5)))
    assert sorted(headrace("consume", "cli-starts", "-e", "--last", "2").split()) == ["03", "04", "13", "14"]
    assert len(headrace("consume", "cli-starts", "-e", "--last", "99", "-p", "1").split()) == 5
    assert len(headrace("consume", "cli-starts", "-e", "--from", "PT1H").split()) == 10
    assert headrace("consume", "cli-starts", "-e", "--from", "2040-01-01") == ""
    stamps = [
        json.loads(line)["timestamp"] for line in headrace("consume", "cli-starts", "-e", "-f", "json").splitlines()
    ]
    newest = [stamp for stamp in stamps if stamp >= max(stamps)]
    assert len(headrace("consume", "cli-starts", "-e", "--from", max(stamps)).split()) == len(newest)


def test_consume_with_a_group_resumes_at_the_committed_offset(headrace: CommandLine) -> None:
    headrace("produce", "cli-member", stdin="1\n2\n3\n")
    assert headrace("consume", "cli-member", "--group", "cli-readers", "-n", "2") == "1\n2\n"
    headrace("produce", "cli-member", stdin="4\n")
    assert headrace("consume", "cli-member", "--group", "cli-readers", "--exit") == "3\n4\n"
    (described,) = json.loads(headrace("groups", "describe", "cli-readers", "--json"))
    assert [(one["committed"], one["lag"]) for one in described["partitions"]] == [(4, 0)]
    assert headrace("consume", "cli-member", "-g", "cli-readers-of-new", "-o", "latest", "--exit") == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topics", "create", "no/such"), "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "x", "--config", "oops"), "name=value"),
        (("topics", "create", "x", "--config", "no.such=1"), "no.such"),
        (("topics", "create", "x", "--replica-assignment", "a"), "1:2,2:3"),
        (("topics", "create", "x", "--replica-assignment", "1", "--partitions", "2"), "cannot be combined"),
        (("topics", "create"), "name at least one topic"),
        (("topics", "describe", "("), "neither a name nor a pattern"),
        (("topics", "describe", "there-is-no-such"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("produce", "x", "-z", "rar"), "rar"),
        (("produce", "x", "--acks", "7"), "acks"),
        (("consume", "cli-none", "-o", "yesterday"), "yesterday"),
        (("consume", "cli-none", "-f", "xml"), "xml"),
        (("consume", "cli-none", "--from", "yesterday"), "2026-07-01T12:00:00Z"),
        (("consume", "cli-none", "--from", "P"), "PT30M"),
        (("consume", "cli-none", "--from", "0", "--last", "1"), "--from and --last"),
        (("consume", "cli-none", "--group", "g", "-p", "0"), "--partition and --group"),
        (("consume", "cli-none", "--group", "g", "--last", "1"), "reset-offsets"),
        (("produce", "x", "-k", ""), "must not be empty"),
        (("consume", "there-is-no-such"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("offsets", "get", "there-is-no-such"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("offsets", "get", "--time", "yesterday"), "2026-07-01T12:00:00Z"),
        (("offsets", "get", "--partitions", "1-x"), "0,2,4-7"),
        (("records", "delete"), "--offset-json-file"),
        (("records", "delete", "--topic", "nope", "--before-offset", "1"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("log-dirs", "describe", "--broker-list", "9"), "BROKER_NOT_AVAILABLE"),
        (("log-dirs", "describe", "--broker-list", "x"), "numbers"),
        (("configs", "describe"), "--entity-type"),
        (("configs", "describe", "--entity-type", "planets"), "topics, brokers"),
        (("configs", "describe", "--topic", "nope-nope"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("configs", "describe", "--broker", "one"), "number"),
        (("configs", "describe", "--entity-name", "x"), "--entity-type is required"),
        (("configs", "describe", "--topic", "a", "--broker", "1"), "only one entity at a time"),
        (("configs", "alter", "--topic", "a"), "nothing to change"),
        (("configs", "alter", "--entity-type", "topics", "--add-config", "a=1"), "--entity-name"),
        (("configs", "alter", "--topic", "a", "--add-config", "a=[1"), "bracket"),
        (("configs", "alter", "--topic", "a", "--add-config", "oops"), "name=value"),
        (("acls", "add", "--topic", "x"), "--allow-principal"),
        (("acls", "add", "--allow-principal", "User:a"), "name a resource"),
        (("acls", "add", "--allow-principal", "User:a", "--topic", "x", "--operation", "Fly"), "idempotent_write"),
        (("acls", "add", "--allow-principal", "User:a", "--topic", "x", "--consumer"), "--group"),
        (("acls", "list", "--resource-pattern-type", "odd"), "prefixed"),
        (("users", "add", "x", "--password", "geheim", "--iterations", "5"), "4096"),
        (("users", "add", "x", "--password", "geheim", "--mechanism", "MD5"), "SCRAM-SHA-512"),
        (("users", "remove", "nobody-at-all"), "RESOURCE_NOT_FOUND"),
        (("users", "list", "nobody-at-all"), "RESOURCE_NOT_FOUND"),
        (("topics", "list", "--command-config", "/nowhere"), "--command-config"),
    ],
)
def test_invalid_commands_fail_with_a_specific_message(
    headrace: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    output = headrace(*arguments, stdin="", fails=True)
    assert message in output and "geheim" not in output


def test_an_unreachable_broker_is_reported_in_one_line() -> None:
    assert "cannot connect to localhost:1" in CommandLine("localhost:1")("topics", "list", fails=True)
    assert "host:port" in CommandLine("localhost")("topics", "list", fails=True)


def test_every_command_has_a_module_and_help() -> None:
    for name in COMMANDS:
        assert "Usage" in CommandLine()(name, "--help")
    listed = CommandLine()("--help")
    assert all(name in listed for name in COMMANDS)


def test_the_program_reports_an_error_in_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from headrace.cli.main import main; main()", "topics", "list", "-b", "localhost:1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("headrace: cannot connect")
    assert done.stderr.count("\n") == 1


def test_format_refuses_a_formatted_directory_and_invalid_arguments(headrace: CommandLine, tmp_path: Path) -> None:
    setting = f"log.dirs={tmp_path / 'data'}"
    cluster = "AAAAAAAAAAAAAAAAAAAAAw"
    assert cluster in headrace("format", "-c", setting, "-t", cluster)
    assert "already formatted" in headrace("format", "-c", setting, fails=True)
    assert cluster in headrace("format", "-c", setting, "--ignore-formatted")
    assert "not a UUID" in headrace("format", "-c", setting, "-t", "?", fails=True)
    assert "no.such" in headrace("format", "-c", setting, "-c", "no.such=1", "--strict", fails=True)
    assert f"cluster.id={cluster}" in (tmp_path / "data" / "meta.properties").read_text()
    assert (tmp_path / "data" / "bootstrap.checkpoint").stat().st_size > 100


def test_a_full_disk_is_reported_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that the operator learns which disk is full."""
    from headrace.cli import main

    def refuse(self: Any, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    monkeypatch.setattr("headrace.storage.disk.DiskFile.append", refuse)
    monkeypatch.setattr(sys, "argv", ["headrace", "format", "-c", f"log.dirs={tmp_path}/data"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    message = capsys.readouterr().err
    assert ended.value.code == 1 and message.count("\n") == 1
    assert f"{tmp_path}/data/" in message and "No space left on device; free some space" in message


def program(*arguments: str, **environment: Any) -> tuple[int, str, str]:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'headrace'; from headrace.cli.main import main; main()",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


def test_version_prints_the_package_version() -> None:
    assert program("--version") == (0, f"headrace {__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["topcis", "list"], "topics"), (["topics", "lst"], "list"), (["consume", "t", "--formt", "json"], "--format")],
)
def test_a_mistyped_command_or_option_suggests_the_nearest_one(typed: list[str], meant: str) -> None:
    code, _, message = program(*typed)
    assert code == 2 and "No such" in message and meant in message


def test_all_levels_suggest_commands_in_the_same_words() -> None:
    assert "No such command 'topcis'. Did you mean 'topics'?" in program("topcis")[2]
    assert "No such command 'lst'. Did you mean 'list'?" in program("topics", "lst")[2]


@pytest.mark.parametrize(
    ("words", "completed"),
    [("headrace to", "topics"), ("headrace topics d", "describe\ndelete"), ("headrace topics list --js", "--json")],
)
def test_the_shell_completes_commands_and_options(words: str, completed: str) -> None:
    index = str(len(words.split()) - 1)
    code, message, _ = program(_HEADRACE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=index)
    assert (code, message.strip()) == (0, completed)
