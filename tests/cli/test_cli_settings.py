"""`headrace settings`: all options are listed, secrets are hidden, and its file starts a node without warnings."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.cli.command_line import CommandLine

from headrace.cli.commands.settings import update_mode
from headrace.node.configuration.settings import ALL_OPTIONS, read_settings

headrace = CommandLine()


def test_all_options_are_listed() -> None:
    listed = json.loads(headrace("settings", "--json"))
    assert [one["name"] for one in listed] == sorted(ALL_OPTIONS)
    for one in listed:
        assert (
            one["type"]
            and one["allowed"]
            and one["meaning"]
            and one["changes"] in ("read-only", "per-broker", "cluster-wide")
        )
    table = headrace("settings")
    assert all(name in table for name in ALL_OPTIONS)


def test_one_option_is_explained() -> None:
    output = headrace("settings", "num.network.threads")
    assert "no effect: one event loop" in output and "HEADRACE_NUM_NETWORK_THREADS" in output and "default: 3" in output
    assert (
        json.loads(headrace("settings", "log.segment.bytes", "--json"))["allowed"]
        == "a number from 1048576 to 2147483647"
    )
    assert "did you mean num.partitions" in headrace("settings", "num.partition", fails=True)
    assert update_mode("log.retention.ms") == "cluster-wide" and update_mode("listeners") == "read-only"
    assert update_mode("ssl.client.auth") == "per-broker" and update_mode("num.partitions") == "read-only"


def test_values_are_shown_with_their_source_and_secrets_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SSL_KEY_PASSWORD", "geheim")
    file = tmp_path / "server.properties"
    file.write_text(
        headrace("settings", "--single-node").replace("PLAINTEXT://localhost:9092", "SASL_PLAINTEXT://localhost:9092")
        + "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT\n"
        + "listener.name.sasl_plaintext.plain.sasl.jaas.config=geheim\n"
    )
    for arguments in ((), ("--json",)):
        output = headrace("settings", "--config", file, "-c", "num.partitions=7", *arguments)
        assert "geheim" not in output and "(hidden)" in output
    values = {one["name"]: one for one in json.loads(output)}
    assert (values["num.partitions"]["value"], values["num.partitions"]["from"]) == ("7", "-c")
    assert values["ssl.key.password"]["from"] == "HEADRACE_SSL_KEY_PASSWORD"
    assert values["node.id"]["from"] == f"{file}, line 6" and values["log.dir"]["from"] == "default"
    assert values["listener.name.sasl_plaintext.plain.sasl.jaas.config"]["value"] == "(hidden)"


def test_the_single_node_file_loads_without_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "server.properties"
    file.write_text(headrace("settings", "--single-node"))
    with caplog.at_level(logging.WARNING):
        settings = read_settings(file, [], strict=True)
    assert caplog.text == "" and settings.values == read_settings(None, []).values
    assert settings.number("offsets.topic.replication.factor") == settings.number("transaction.state.log.min.isr") == 1
