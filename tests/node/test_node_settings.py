"""server.properties with Kafka's names: a file for Kafka's combined node works; invalid and unused options are named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.node.configuration.listener_addresses import ListenerAddress, host_and_port
from headrace.node.configuration.settings import ALL_OPTIONS, make_settings, read_settings
from headrace.node.configuration.sources import option_name, variable_name
from headrace.options.table import Kind, Option

KAFKAS_OWN = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def warnings_of(
    caplog: pytest.LogCaptureFixture, *flags: str, environment: Any = None, strict: bool = False
) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        read_settings(None, flags, environment, strict=strict)
    return caplog.messages


def test_kafkas_combined_server_properties_are_accepted_without_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKAS_OWN)
    with caplog.at_level(logging.WARNING):
        settings = read_settings(file, ["num.partitions=12"])
    assert caplog.text == ""
    assert [(one.name, one.port) for one in settings.broker_listeners] == [("PLAINTEXT", 9092)]
    assert [(one.name, one.port) for one in settings.controller_listeners] == [("CONTROLLER", 9093)]
    assert settings.log_dirs == ("/tmp/kraft-combined-logs",) and settings.number("num.partitions") == 12
    assert [(e.name, e.host, e.port) for e in settings.endpoints({})] == [("PLAINTEXT", "localhost", 9092)]
    assert settings.topic_defaults()["retention.ms"] == 168 * 3_600_000


def test_the_defaults_are_a_single_node_on_localhost() -> None:
    settings = read_settings(None, [])
    assert [(one.host, one.port) for one in settings.broker_listeners] == [("localhost", 9092)]
    own = make_settings({"listeners": "PLAINTEXT://127.0.0.1:0"}, single_node=True)
    assert own.controller_listeners == () and own.endpoints({"PLAINTEXT": 4711})[0].port == 4711


@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ("process.roles=broker", "only a broker"),
        ("process.roles=broker,zookeeper", "process.roles"),
        ("process.roles=", "process.roles is missing: a node is broker, controller, or broker,controller"),
        ("process.roles=controller", "only a controller has no listener for clients"),
        ("node.id=one", "node.id"),
        ("broker.id=7", "node.id must be set|two names of the same option"),
        ("listeners=PLAINTEXT:9092", "listeners"),
        ("listeners=PLAINTEXT://::1:9092", r"\[::1\]"),
        ("listeners=PLAINTEXT://localhost:70000", "65535"),
        ("listeners=PLAINTEXT://a:1,PLAINTEXT://b:2", "once"),
        ("listeners=EXTERNAL://localhost:9092", "listener.security.protocol.map"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners is not set"),
        ("listener.security.protocol.map=PLAINTEXT:TLS", "SASL_SSL"),
        ("controller.quorum.voters=2@a:1,3@b:2", "must be one of the voters"),
        ("controller.quorum.voters=1@a:1,1@b:2", "only once"),
        ("controller.quorum.voters=1@a", "host:port"),
        ("controller.quorum.bootstrap.servers=a", "controller.quorum.bootstrap.servers"),
        ("advertised.listeners=OTHER://a:1", "OTHER"),
        ("advertised.listeners=PLAINTEXT://[::]:9092", "clients cannot connect"),
        ("inter.broker.listener.name=OTHER", "one of the listeners of the broker"),
        ("log.dirs=a,b,a", "once"),
        ("metadata.log.dir=elsewhere", "one of log.dirs"),
        ("num.partitions=0.5", "num.partitions"),
        ("log.retention.hours=0", "-1"),
        ("replica.fetch.wait.max.ms=40000", "replica.socket.timeout.ms"),
        ("group.consumer.min.session.timeout.ms=70000", "group.consumer.max.session.timeout.ms"),
        ("connections.max.idle.ms=50", "connection.failed.authentication.delay.ms"),
        ("remote.log.storage.system.enable=true", "tiered storage"),
        ("config.providers=file", "HEADRACE_"),
        ("nonsense", "name=value"),
    ],
)
def test_invalid_settings_are_named_in_the_error(setting: str, reported: str) -> None:
    flags = [setting, "node.id=1"] if setting.startswith("broker.id") else [setting]
    with pytest.raises(ConfigError, match=reported):
        read_settings(None, flags)


VOTERS = "controller.quorum.voters=1@a:9093,2@b:9093,3@[::1]:9093"


def test_a_controller_has_no_listeners_for_clients_and_a_broker_none_for_controllers() -> None:
    listeners = ["listeners=CONTROLLER://localhost:9093", "controller.listener.names=CONTROLLER"]
    settings = read_settings(None, [VOTERS, "process.roles=controller", *listeners])
    assert settings.is_controller and not settings.is_broker and not settings.is_alone
    assert settings.broker_listeners == settings.advertised == ()
    assert [listener.name for listener in settings.controller_listeners] == ["CONTROLLER"]
    assert settings.quorum_voters == {1: ("a", 9093), 2: ("b", 9093), 3: ("::1", 9093)}
    flags = ["process.roles=broker", "node.id=7", "listeners=PLAINTEXT://localhost:9092", "controller.listener.names=C"]
    settings = read_settings(None, [VOTERS, *flags])
    assert settings.is_broker and not settings.is_controller and not settings.is_alone
    assert settings.controller_listeners == ()
    settings = read_settings(None, ["controller.quorum.bootstrap.servers=a:1,[::1]:2", *flags])
    assert settings.quorum_voters == {} and settings.bootstrap_controllers == (("a", 1), ("::1", 2))


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        ([VOTERS, "process.roles=broker", "listeners=PLAINTEXT://localhost:9092"], "must not be one of the voters"),
        (["process.roles=broker", "listeners=PLAINTEXT://localhost:9092"], "controller.quorum.bootstrap.servers"),
        ([VOTERS, "node.id=4"], "must be one of the voters"),
        ([VOTERS, "listeners=PLAINTEXT://localhost:9092"], "the other controllers need a listener"),
        ([VOTERS, "process.roles=controller", "listeners=PLAINTEXT://localhost:9092"], "one of the listeners of this"),
    ],
)
def test_roles_voters_and_listeners_must_fit_together(flags: list[str], reported: str) -> None:
    names = (
        []
        if any(flag.startswith("controller.listener") for flag in flags)
        else ["controller.listener.names=CONTROLLER"]
    )
    with pytest.raises(ConfigError, match=reported):
        read_settings(None, [*flags, *names])


def test_an_invalid_value_is_reported_with_its_origin() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions='x' is not allowed.*\(HEADRACE_NUM_PARTITIONS\)"):
        read_settings(None, [], {"HEADRACE_NUM_PARTITIONS": "x"})


def test_all_invalid_settings_are_listed_at_once_with_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        KAFKAS_OWN + "node.id=one\nnum.partitions=many\nconnections.max.idle.ms=50\nmetadata.log.dir=elsewhere\n"
    )
    environment = {"HEADRACE_LOG_SEGMENT_BYTES": "1.5", "HEADRACE_LISTENER_NAME_PLAINTEXT_MAX_CONNECTIONS": "x"}
    with pytest.raises(ConfigError) as raised:
        read_settings(file, ["listeners=PLAINTEXT:9092", "nonsense", "log.retention.hour=1"], environment, strict=True)
    head, *lines = str(raised.value).splitlines()
    assert head == "8 settings cannot be used:" and len(lines) == 8
    first = len(KAFKAS_OWN.splitlines()) + 1
    for name, origin in (
        ("node.id='one'", f"({file}, line {first})"),
        ("num.partitions='many'", f"({file}, line {first + 1})"),
        ("connections.max.idle.ms=50", f"connections.max.idle.ms: {file}, line {first + 2})"),
        ("metadata.log.dir=elsewhere", f"metadata.log.dir: {file}, line {first + 3})"),
        ("log.segment.bytes='1.5'", "(HEADRACE_LOG_SEGMENT_BYTES)"),
        ("listeners: 'PLAINTEXT:9092'", "(-c)"),
        ("-c 'nonsense'", "expected name=value"),
        ("log.retention.hour (-c)", "did you mean log.retention.hours?"),
    ):
        assert [line for line in lines if name in line and origin in line], (name, lines)


def test_an_unknown_option_logs_one_warning_with_the_nearest_known_name(caplog: pytest.LogCaptureFixture) -> None:
    reported = warnings_of(caplog, "log.retention.hour=1")
    assert reported == [
        "log.retention.hour (-c) is no known option (did you mean log.retention.hours?); it is not used"
    ]
    with pytest.raises(ConfigError, match=r"log\.retention\.hour .*did you mean log\.retention\.hours"):
        warnings_of(caplog, "log.retention.hour=1", strict=True)
    with pytest.raises(
        ConfigError, match=r"listener\.name\.plaintext\.ssl\.keystor\.location .*ssl\.keystore\.location"
    ):
        warnings_of(caplog, "listener.name.plaintext.ssl.keystor.location=x", strict=True)


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("num.network.threads=8", "num.network.threads has no effect: one event loop"),
        ("group.coordinator.threads=5", "group.coordinator.threads has no effect"),
        ("quota.producer.default=1024", "producer_byte_rate"),
        ("zookeeper.connect=localhost:2181", "process.roles"),
        ("log.message.format.version=2.8", "format v2"),
        ("default.replication.factor=3", "default.replication.factor=3"),
        ("group.coordinator.rebalance.protocols=classic", "group.protocol=consumer are refused"),
        ("broker.heartbeat.interval.ms=8000", "broker.session.timeout.ms"),
        ("controller.listener.names=NOWHERE,CONTROLLER", "add NOWHERE://localhost:9093"),
        ("ssl.provider=x", "ssl.provider has no effect"),
    ],
)
def test_an_option_without_effect_logs_one_warning(caplog: pytest.LogCaptureFixture, flag: str, named: str) -> None:
    reported = warnings_of(caplog, flag)
    assert len(reported) == 1 and named in reported[0]


@pytest.mark.parametrize("flags", [{"threads": 128}, {"threads": 2, "dedupe.buffer.size": 2_097_152}])
def test_each_cleaner_thread_needs_more_than_one_mebibyte_of_dedupe_buffer(
    caplog: pytest.LogCaptureFixture, flags: dict[str, int]
) -> None:
    texts = [f"log.cleaner.{name}={value}" for name, value in flags.items()]
    with pytest.raises(ConfigError, match=r"log\.cleaner\.dedupe\.buffer\.size=\d+ must be more than 1048576 bytes"):
        read_settings(None, texts, {})
    assert read_settings(None, ["log.cleaner.threads=127"], {}).number("log.cleaner.threads") == 127


def test_the_classic_group_protocol_cannot_be_disabled(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"group\.coordinator\.rebalance\.protocols must have classic"):
        warnings_of(caplog, "group.coordinator.rebalance.protocols=consumer")


def test_log_cleanup_policy_compact_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, "log.cleanup.policy=compact") == []


def test_every_unused_option_logs_a_warning_when_it_is_changed(caplog: pytest.LogCaptureFixture) -> None:
    """Walk the whole table: an option without effect logs one warning if it is set to anything but what holds anyway."""
    others: dict[Kind, Callable[[Option], str]] = {
        Kind.BOOLEAN: lambda o: str(not o.default).lower(),
        Kind.LIST: lambda o: ",".join(o.one_of[:1] or ["other"]),
    }
    for option in ALL_OPTIONS.values():
        if option.unused is None:
            continue
        if option.kind in (Kind.INT, Kind.LONG, Kind.SHORT):
            low = int(option.at_least or 0)
            text = next(str(n) for n in range(low, low + 9) if n not in (option.default, *option.anyway))
        elif option.kind is Kind.DOUBLE:
            text = "0.25"
        elif option.kind in others:
            text = others[option.kind](option)
        else:
            text = next(t for t in (*option.one_of, "other") if t != option.default)
        if option.parse(text) in option.anyway:
            continue
        try:
            reported = warnings_of(caplog, f"{option.name}={text}")
        except ConfigError as error:  # it contradicts another option, and the error names it
            assert option.name in str(error)
            continue
        assert [line for line in reported if line.startswith(f"{option.name} has no effect")] != [], option.name
        if option.default is not None:
            assert warnings_of(caplog, f"{option.name}={option.text(option.default)}") == []


def test_every_option_is_documented_and_bounded() -> None:
    for option in ALL_OPTIONS.values():
        assert len(option.meaning) > 3 and "\n" not in option.meaning and option.allowed
        if option.default is not None:
            assert option.parse(option.text(option.default)) == option.default


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKAS_OWN + "num.partitions=2\nlog.segment.bytes=2000000\nqueued.max.requests=500\n")
    environment = {
        "HEADRACE_NUM_PARTITIONS": "3",
        "HEADRACE_LOG_SEGMENT_BYTES": "3000000",
        "HEADRACE_HTTP_LISTENER": "localhost:1",
        "HEADRACE_LISTENER_NAME_PLAINTEXT_SSL_KEYSTORE_TYPE": "PEM",
        "KAFKA_NUM_PARTITIONS": "7",
        "HEADRACE_SEED": "1",
    }
    settings = read_settings(file, ["num.partitions=4"], environment)
    assert settings.number("num.partitions") == 4 and settings.number("log.segment.bytes") == 3_000_000
    assert settings.text("headrace.http.listener") == "localhost:1"
    assert settings.listener_values == {"listener.name.plaintext.ssl.keystore.type": "PEM"}
    assert settings.origins["num.partitions"] == "-c"
    assert settings.origins["log.segment.bytes"] == "HEADRACE_LOG_SEGMENT_BYTES"
    assert settings.origins["node.id"] == f"{file}, line 3"


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("HEADRACE_LOG_DIRS", "log.dirs"),
        ("HEADRACE_LISTENER_NAME_SASL__SSL_SCRAM___SHA___512_SASL_JAAS_CONFIG",
         "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config"),
        ("HEADRACE_KAFKA_LIBS", None),
        ("HEADRACE_RUNTIME", None),  # used by `headrace pipelines`
        ("PATH", None),
        ("HEADRACE_", None),
    ],
)  # fmt: skip
def test_environment_variables_map_to_option_names_and_back(variable: str, name: str | None) -> None:
    assert option_name(variable) == name
    if name is not None:
        assert variable_name(name) == variable


def test_every_option_has_its_own_environment_variable() -> None:
    for name in ALL_OPTIONS:
        assert option_name(variable_name(name)) in (name, name.removeprefix("headrace."))


def test_synonyms_follow_kafkas_precedence(caplog: pytest.LogCaptureFixture) -> None:
    settings = read_settings(None, ["log.retention.hours=1", "log.retention.minutes=2", "log.roll.hours=3"])
    assert settings.topic_defaults()["retention.ms"] == 120_000
    assert settings.topic_defaults()["segment.ms"] == 3 * 3_600_000
    assert "log.retention.hours has no effect, because log.retention.minutes is set too" in caplog.messages
    assert (
        read_settings(None, ["log.retention.ms=-1", "log.retention.minutes=2"]).topic_defaults()["retention.ms"] == -1
    )
    assert read_settings(None, ["broker.id=7"]).node_id == 7


def test_ipv6_addresses_are_written_in_brackets() -> None:
    settings = read_settings(
        None,
        [
            "listeners=PLAINTEXT://[::1]:9092,SECOND://127.0.0.1:9094",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
            "advertised.listeners=PLAINTEXT://[fe80::1%eth0]:9092,SECOND://broker.example:19094",
        ],
    )
    assert settings.broker_listeners == (
        ListenerAddress("PLAINTEXT", "::1", 9092),
        ListenerAddress("SECOND", "127.0.0.1", 9094),
    )
    assert [(one.host, one.port) for one in settings.endpoints({})] == [
        ("fe80::1%eth0", 9092),
        ("broker.example", 19094),
    ]
    assert host_and_port("::1", 9092) == "[::1]:9092" and host_and_port("a", 1) == "a:1"


def test_a_missing_properties_file_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing cannot be read: No such file or directory$"):
        read_settings(tmp_path / "missing", [])
