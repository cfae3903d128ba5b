"""Traffic counters by topic."""

from __future__ import annotations

from headrace.replication.traffic import Traffic


def test_totals_include_the_traffic_of_deleted_topics() -> None:
    traffic = Traffic()
    traffic.topic("a").messages_in += 5
    traffic.topic("b").messages_in += 2
    assert traffic.topic("a") is traffic.topic("a")
    traffic.delete_topic("a")
    traffic.delete_topic("unknown")
    assert [name for name, _ in traffic.topics()] == ["b"]
    assert traffic.topic("a").messages_in == 0
    assert traffic.total().messages_in == 7
