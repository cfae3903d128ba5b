"""server.properties in Kafka's names: a file written for Kafka's combined node starts ours; what cannot be is named."""

import logging

import pytest

from headrace.base.errors import ConfigError
from headrace.node.settings import make_settings, read_settings

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


def test_kafkas_own_file_for_a_combined_node(tmp_path, caplog):
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


def test_without_a_file_there_is_a_single_node_on_localhost():
    settings = read_settings(None, [])
    assert [(one.host, one.port) for one in settings.broker_listeners] == [("localhost", 9092)]
    own = make_settings({"listeners": "PLAINTEXT://127.0.0.1:0"}, single_node=True)
    assert own.controller_listeners == () and own.endpoints({"PLAINTEXT": 4711})[0].port == 4711


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("process.roles=broker", "process.roles"),
        ("node.id=one", "node.id"),
        ("listeners=PLAINTEXT:9092", "listeners"),
        ("listeners=PLAINTEXT://a:1,PLAINTEXT://b:2", "once"),
        ("listeners=EXTERNAL://localhost:9092", "listener.security.protocol.map"),
        ("controller.listener.names=NOWHERE", "not among listeners"),
        ("controller.quorum.voters=1@a:1,2@b:2", "quorum of one"),
        ("advertised.listeners=OTHER://a:1", "OTHER"),
        ("num.partitions=0.5", "num.partitions"),
        ("nonsense", "name=value"),
    ],
)
def test_a_setting_that_cannot_be_is_named(setting, said):
    with pytest.raises(ConfigError, match=said):
        read_settings(None, [setting])


def test_an_unknown_name_is_a_warning_with_the_nearest_known_one(caplog):
    with caplog.at_level(logging.WARNING):
        read_settings(None, ["log.retention.hour=1"])
    assert "did you mean log.retention.hours" in caplog.text


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "missing", [])
