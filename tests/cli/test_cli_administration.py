"""Options, offsets, deletions, directories and the quorum on the command line, with a real node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.command_line import CommandLine

from headrace.base.errors import ConfigError
from headrace.cli.commands.configs import Entity, parse_additions, parse_entities
from headrace.cli.commands.offsets import parse_time
from headrace.cli.commands.records import read_offsets
from headrace.testing.cluster import EmbeddedNode


def options_of(headrace: CommandLine, *arguments: str) -> dict[str, tuple[str, str]]:
    (found,) = json.loads(headrace("configs", "describe", *arguments, "--json"))
    return {one["name"]: (one["value"], one["source"]) for one in found["options"]}


def test_configs_of_a_topic_are_described_and_altered(headrace: CommandLine, tmp_path: Path) -> None:
    headrace("topics", "create", "cli-configs", "--config", "retention.ms=5000")
    headrace(
        "configs", "alter", "--topic", "cli-configs", "--add-config", "cleanup.policy=[compact,delete],segment.ms=70000"
    )
    assert options_of(headrace, "--topic", "cli-configs") == {
        "retention.ms": ("5000", "topic"),
        "cleanup.policy": ("compact,delete", "topic"),
        "segment.ms": ("70000", "topic"),
    }
    file = tmp_path / "some.properties"
    file.write_text("max.message.bytes=2000\n")
    headrace(
        "configs", "alter", "--entity-type", "topics", "--entity-name", "cli-configs", "--add-config-file", file,
        "--delete-config", "retention.ms,segment.ms",
    )  # fmt: skip
    assert options_of(headrace, "--topic", "cli-configs").keys() == {"cleanup.policy", "max.message.bytes"}
    assert options_of(headrace, "--topic", "cli-configs", "--all")["segment.ms"][1] == "default"
    assert "INVALID_CONFIG" in headrace("configs", "alter", "--topic", "cli-configs", "--add-config", "x=1", fails=True)
    assert "would change" in headrace(
        "configs", "alter", "--topic", "cli-configs", "--add-config", "segment.ms=9", "--validate-only"
    )
    assert "segment.ms" not in options_of(headrace, "--topic", "cli-configs")
    assert "cli-configs" in headrace("configs", "describe", "--entity-type", "topics")


def test_configs_of_brokers_groups_and_client_metrics_are_described_and_altered(headrace: CommandLine) -> None:
    headrace("configs", "alter", "--broker-defaults", "--add-config", "log.retention.ms=777777")
    headrace("configs", "alter", "--broker", "1", "--add-config", "log.segment.bytes=2000000")
    assert options_of(headrace, "--broker", "1")["log.segment.bytes"] == ("2000000", "broker")
    assert options_of(headrace, "--broker-defaults")["log.retention.ms"] == ("777777", "all brokers")
    assert "Cannot update these configs dynamically" in headrace(
        "configs", "alter", "--broker", "1", "--add-config", "num.partitions=3", fails=True
    )
    headrace("configs", "alter", "--broker-defaults", "--delete-config", "log.retention.ms")
    headrace("configs", "alter", "--broker", "1", "--delete-config", "log.segment.bytes")
    headrace("configs", "alter", "--client-metrics", "cli-sub", "--add-config", "interval.ms=1000")
    assert "cli-sub" in headrace("configs", "describe", "--entity-type", "client-metrics")
    headrace("configs", "alter", "--group", "cli-group", "--add-config", "consumer.session.timeout.ms=50000")
    assert options_of(headrace, "--group", "cli-group")["consumer.session.timeout.ms"] == ("50000", "group")
    assert "headrace" in headrace("configs", "describe", "--broker-logger", "1")


def test_scram_credentials_are_user_configs_and_invalid_values_are_refused(headrace: CommandLine) -> None:
    headrace(
        "configs", "alter", "--user", "cli-user", "--add-config", "SCRAM-SHA-256=[iterations=5000,password=geheim]"
    )
    assert "iterations=5000" in headrace("configs", "describe", "--user", "cli-user")
    assert json.loads(headrace("configs", "describe", "--user", "cli-user", "--json")) == [
        {"entity": {"user": "cli-user"}, "options": {"SCRAM-SHA-256": "iterations=5000"}}
    ]
    headrace("configs", "alter", "--user", "cli-user", "--delete-config", "SCRAM-SHA-256")
    assert json.loads(headrace("configs", "describe", "--user", "cli-user", "--json")) == []
    assert json.loads(headrace("configs", "describe", "--user", "a", "--client", "b", "--json")) == []
    for wrong in ("SCRAM-SHA-256=[passwort=geheim]", "SCRAM-SHA-256=[password=geheim,iterations=many]"):
        message = headrace("configs", "alter", "--user", "cli-user", "--add-config", wrong, fails=True)
        assert "SCRAM-SHA-256" in message and "geheim" not in message
    assert "only a user" in headrace(
        "configs", "alter", "--client", "c", "--add-config", "SCRAM-SHA-256=[password=x]", fails=True
    )
    assert "not a number" in headrace(
        "configs", "alter", "--user", "u", "--add-config", "producer_byte_rate=x", fails=True
    )


def test_altering_a_quota_fails_because_alter_client_quotas_is_unsupported(headrace: CommandLine) -> None:
    for entity in (("--user", "u"), ("--client-defaults",), ("--ip", "127.0.0.1")):
        message = headrace("configs", "alter", *entity, "--add-config", "producer_byte_rate=1000", fails=True)
        assert "does not support ALTER_CLIENT_QUOTAS" in message and "0--1" not in message


@pytest.mark.parametrize(
    ("entity", "name", "suggestion"),
    [
        (("--topic", "cli-deletes"), "retention.mss", "did you mean retention.ms?"),
        (("--topic", "cli-deletes"), "segment.ms", "segment.ms"),  # a known option that is not set here
        (("--broker-defaults",), "log.retention.msec", "did you mean log.retention.ms?"),
        (("--group", "cli-deletes"), "consumer.session.timeout", "did you mean consumer.session.timeout.ms?"),
        (("--user", "cli-deletes"), "producer_byte_rat", "did you mean producer_byte_rate?"),
        (("--user", "cli-deletes"), "SCRAM-SHA-256", "SCRAM-SHA-256"),
    ],
)
def test_deleting_a_config_that_is_not_set_is_refused_with_a_suggestion(
    headrace: CommandLine, entity: tuple[str, ...], name: str, suggestion: str
) -> None:
    if entity[0] == "--topic":
        headrace("topics", "create", "cli-deletes", "--config", "retention.ms=5000", "--if-not-exists")
    message = headrace("configs", "alter", *entity, "--delete-config", name, fails=True)
    assert name in message and suggestion in message
    if entity[0] == "--topic":
        assert options_of(headrace, *entity)["retention.ms"] == ("5000", "topic")


def test_users_are_added_listed_and_removed(headrace: CommandLine) -> None:
    headrace("users", "add", "cli-zoe", stdin="from stdin\n")
    headrace(
        "users", "add", "cli-yan", "--password", "x", "--mechanism", "SCRAM-SHA-256", "--mechanism", "scram-sha-512"
    )
    found = {one["name"]: one["mechanisms"] for one in json.loads(headrace("users", "list", "--json"))}
    assert found["cli-zoe"] == {"SCRAM-SHA-512": 4096} and len(found["cli-yan"]) == 2
    headrace("users", "remove", "cli-yan", "--mechanism", "SCRAM-SHA-256")
    assert headrace("users", "list", "cli-yan").split()[-3:] == ["cli-yan", "SCRAM-SHA-512", "4096"]
    assert headrace("users", "remove", "cli-yan", "cli-zoe").count("removed") == 2
    assert "must not be empty" in headrace("users", "add", "cli-zoe", stdin="\n", fails=True)


def test_offsets_are_looked_up_by_time_and_records_are_deleted_before_an_offset(
    headrace: CommandLine, tmp_path: Path
) -> None:
    headrace("topics", "create", "cli-offsets", "--partitions", "2")
    headrace("produce", "cli-offsets", "-p", "1", stdin="".join(f"{n}\n" for n in range(10)))

    def offsets(when: str) -> list[int | None]:
        return [
            one["offset"] for one in json.loads(headrace("offsets", "get", "cli-offsets", "--time", when, "--json"))
        ]

    assert offsets("latest") == [0, 10] and offsets("earliest") == [0, 0] and offsets("-1") == [0, 10]
    assert offsets("max-timestamp")[0] is None and 0 <= offsets("max-timestamp")[1] < 10
    assert offsets("0") == [None, 0] and offsets("2040-01-01T00:00:00Z") == [None, None]
    assert "none" in headrace("offsets", "get", "--topic", "cli-offsets", "--time", "2040-01-01", "--partitions", "1")
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "cli-offsets", "partition": 1, "offset": 4}], "version": 1}')
    assert json.loads(headrace("records", "delete", "--offset-json-file", file, "--json")) == [
        {"topic": "cli-offsets", "partition": 1, "low_watermark": 4}
    ]
    assert offsets("earliest") == [0, 4]
    headrace("records", "delete", "--topic", "cli-offsets", "-p", "1", "--before-offset", "-1")
    assert offsets("earliest") == [0, 10]
    message = headrace("records", "delete", "--topic", "cli-offsets", "-p", "1", "--before-offset", "99", fails=True)
    assert "OFFSET_OUT_OF_RANGE" in message


def test_log_dirs_and_the_quorum_are_described(headrace: CommandLine, headrace_session_node: EmbeddedNode) -> None:
    headrace("produce", "cli-dirs", stdin="one\n")
    (broker,) = json.loads(headrace("log-dirs", "describe", "--topic-list", "cli-dirs", "--json"))["brokers"]
    (log_dir,) = broker["logDirs"]
    assert log_dir["logDir"] == str(headrace_session_node.data_dir) and log_dir["error"] is None
    assert [one["partition"] for one in log_dir["partitions"]] == ["cli-dirs-0"] and log_dir["partitions"][0][
        "size"
    ] > 60
    assert "cli-dirs-0" in headrace("log-dirs", "describe", "--broker-list", "1")
    quorum = json.loads(headrace("quorum", "describe", "--json"))
    assert (
        quorum["leader_id"] == 1 and quorum["replicas"][0]["status"] == "Leader" and quorum["replicas"][0]["lag"] == 0
    )
    assert "replicas" not in json.loads(headrace("quorum", "describe", "--status", "--json"))
    assert "high_watermark" not in headrace("quorum", "describe", "--replication")
    assert "leader_epoch" in headrace("quorum", "describe")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=[2,3],c=", {"a": "1", "b": "2,3", "c": ""}),
        ("S=[iterations=1,password=a=b]", {"S": "iterations=1,password=a=b"}),
    ],
)
def test_add_config_values_may_be_lists_in_brackets(text: str, found: dict[str, str]) -> None:
    assert parse_additions(text) == found


def test_entity_flags_are_parsed_and_invalid_combinations_are_refused() -> None:
    both = parse_entities(["clients", "users"], ["c", "u"], False, [])
    assert both == [Entity("users", "u"), Entity("clients", "c")]
    assert parse_entities(["users"], [], True, []) == [Entity("users", "")]
    assert parse_entities([], [], False, [Entity("brokers", "")]) == [Entity("brokers", "")]
    with pytest.raises(ConfigError, match="no default entity"):
        parse_entities(["topics"], [], True, [])
    with pytest.raises(ConfigError, match="at most one"):
        parse_entities(["topics"], ["a", "b"], False, [])


def test_times_are_parsed_from_keywords_milliseconds_and_iso_dates() -> None:
    assert parse_time("earliest") == -2 and parse_time("1500000000000") == 1_500_000_000_000
    assert parse_time("2017-07-14T02:40:00Z") == parse_time("2017-07-14T02:40:00") == 1_500_000_000_000
    with pytest.raises(ConfigError, match="-6"):
        parse_time("-6")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"partitions": [], "version": 1}', '{"partitions": [{"topic": "t"}], "version": 1}', "[" * 100_000,
     '{"partitions": [{"topic": "t", "partition": 0, "offset": true}], "version": 1}',
     '{"partitions": [{"topic": "t", "partition": 0, "offset": 1}, {"topic": "t", "partition": 0, "offset": 2}], "version": 1}',
     '{"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 2}'],
)  # fmt: skip
def test_an_invalid_offset_json_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="--offset-json-file"):
        read_offsets(file)
