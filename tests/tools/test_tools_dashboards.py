"""The comparison of metrics with Kafka's, and the page that lists them."""

from __future__ import annotations

from tools.prove.dashboards import TOPIC, differences, documented, parse

PAGE = f"""\
# HELP kafka_log_log_size Bytes of the log.
# TYPE kafka_log_log_size gauge
kafka_log_log_size{{topic="{TOPIC}",partition="0"}} 77
kafka_log_log_size{{topic="a \\"b\\"",partition="0"}} 1.5e+06
kafka_server_replicamanager_leadercount 3
"""


def test_samples_are_parsed_by_name_and_labels() -> None:
    samples = parse(PAGE)
    assert samples["kafka_server_replicamanager_leadercount"] == {frozenset(): 3.0}
    assert samples["kafka_log_log_size"][frozenset({("topic", TOPIC), ("partition", "0")})] == 77
    assert 1.5e6 in samples["kafka_log_log_size"].values()


def test_documented_metrics_are_read_from_the_table() -> None:
    names = [metric.name for metric in documented()]
    assert len(names) == len(set(names)) >= 45
    assert "kafka_network_requestmetrics_totaltimems" in names


def test_missing_and_different_metrics_are_reported() -> None:
    ours, theirs = parse(PAGE), parse(PAGE.replace(" 77", " 78"))
    found = list(differences(ours, theirs))
    assert any(line.startswith("kafka_log_log_size{") and "77.0 on Headrace, 78.0 on Kafka" in line for line in found)
    assert "process_open_fds is missing on Headrace" in found
    assert not any("leadercount" in line for line in found)
