"""Whether all replicas of all topics are in sync, as any client sees it."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient

REQUEST_S_MAX = 30.0
POLL_S = 0.2
SHOWN = 5


def out_of_sync(admin: AdminClient) -> list[str]:
    """Return the partitions, internal topics included, of which some replica is not in the ISR or none leads."""
    return [
        f"{name}-{one.id}: leader {one.leader}, replicas {one.replicas}, ISR {one.isrs}"
        for name, topic in admin.list_topics(timeout=REQUEST_S_MAX).topics.items()
        for one in topic.partitions.values()
        if one.leader < 0 or len(one.isrs) < len(one.replicas)
    ]


def wait_until_in_sync(bootstrap: str, seconds_max: float) -> None:
    """Wait until all replicas are in sync. Raise AssertionError with the partitions that are not in time."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + seconds_max
    while left := out_of_sync(admin):
        assert time.monotonic() < deadline, f"out of sync after {seconds_max:.0f} s: {left[:SHOWN]}"
        time.sleep(POLL_S)
