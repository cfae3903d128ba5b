"""Our assignors compared with those of Kafka's Java client on the same groups, including the encoded subscriptions."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from testkit.kafka_peer import TOOL_OPTIONS, TOOL_S_MAX, libraries, require_kafka

from headrace.base.ids import TopicPartition
from headrace.client.group.assignors import Layout, assignors_named
from headrace.client.group.classic_protocol import (
    Subscribed,
    decode_assignment,
    decode_sticky_data,
    decode_subscription,
    encode_subscription,
)

pytestmark = pytest.mark.java
GROUPS = 300
RACKS = [f"r{number}" for number in range(4)]
SOURCE = Path(__file__).parent / "Assign.java"


class Group(NamedTuple):
    assignor: str
    layout: Layout
    subscribed: dict[str, Subscribed]  # subscriptions by member, as the assignor encodes them


def random_group(random_source: random.Random, assignor: str) -> Group:
    counts = {topic: random_source.randint(1, 8) for topic in random_source.sample("abcd", random_source.randint(1, 4))}
    has_racks = assignor in ("range", "roundrobin") and random_source.random() < 0.6
    racks = {}
    for topic, count in counts.items():
        for index in range(count):
            if has_racks:
                racks[TopicPartition(topic, index)] = frozenset(
                    random_source.sample(RACKS, random_source.randint(1, 3))
                )
    are_same = random_source.random() < 0.5
    all_want = frozenset(random_source.sample("abcd", random_source.randint(1, 4)))
    free = [TopicPartition(topic, index) for topic in counts for index in range(counts[topic])]
    random_source.shuffle(free)
    kind = assignors_named([assignor])[0]
    subscribed = {}
    for number in range(random_source.randint(1, 6)):
        topics = all_want if are_same else frozenset(random_source.sample("abcd", random_source.randint(1, 4)))
        had = [one for one in free if one.topic in topics][: random_source.randint(0, 6) if "sticky" in assignor else 0]
        free = [one for one in free if one not in had]
        subscribed[f"m{number}"] = Subscribed(
            topics,
            tuple(sorted(had)) if kind.cooperative else (),
            5 if had else -1,
            random_source.choice([None, *RACKS]) if has_racks else None,
            f"i{random_source.randint(0, 99)}-{number}" if random_source.random() < 0.3 else None,
            kind.user_data(sorted(had), 5 if had else -1) or b"",
        )
    return Group(assignor, Layout(counts, racks), subscribed)


def had_before(group: Group, member: str) -> list[TopicPartition]:
    subscribed = group.subscribed[member]
    return (
        list(subscribed.owned)
        if group.assignor == "cooperative-sticky"
        else decode_sticky_data(subscribed.user_data)[0]
    )


def lines(group: Group) -> list[str]:
    found = [f"group {group.assignor}"]
    for topic, count in group.layout.counts.items():
        for index in range(count):
            racks = ",".join(sorted(group.layout.racks.get(TopicPartition(topic, index), ()))) or "-"
            found.append(f"partition {topic} {index} {racks}")
    for member, subscribed in group.subscribed.items():
        owned = ",".join(f"{one.topic}:{one.partition}" for one in had_before(group, member)) or "-"
        topics = ",".join(sorted(subscribed.topics))
        found.append(
            f"member {member} {subscribed.instance_id or '-'} {subscribed.rack or '-'} {topics} {owned} {5 if owned != '-' else -1}"
        )
    return [*found, "end"]


class JavaResult(NamedTuple):
    assigned: list[TopicPartition]
    sent: bytes
    given: bytes


def assign_with_java(groups: list[Group]) -> list[dict[str, JavaResult]]:
    subscribed = "".join(f"{line}\n" for group in groups for line in lines(group))
    command = ["java", *TOOL_OPTIONS, "-cp", f"{libraries()}/*", str(SOURCE)]
    done = subprocess.run(command, input=subscribed, capture_output=True, text=True, timeout=TOOL_S_MAX)
    assert done.returncode == 0, done.stderr[-2000:]
    results: list[dict[str, JavaResult]] = [{}]
    for line in done.stdout.splitlines():
        if line == "end":
            results.append({})
            continue
        member, places, sent, given = line.split(" ")
        assigned = [] if places == "-" else [place.split(":") for place in places.split(",")]
        partitions = [TopicPartition(topic, int(index)) for topic, index in assigned]
        results[-1][member] = JavaResult(sorted(partitions), bytes.fromhex(sent), bytes.fromhex(given))
    return results[:-1]


def test_assignments_and_encoded_subscriptions_match_the_java_client() -> None:
    require_kafka()
    seed = int(os.environ.get("HEADRACE_SEED", time.time_ns() % (1 << 32)))
    random_source = random.Random(seed)
    names = ["range", "roundrobin", "sticky", "cooperative-sticky"]
    groups = [random_group(random_source, names[number % len(names)]) for number in range(GROUPS)]
    for group, java in zip(groups, assign_with_java(groups), strict=True):
        ours = assignors_named([group.assignor])[0].assign(group.layout, group.subscribed)
        about = f"seed {seed}: {group}\nJava: { {member: one.assigned for member, one in java.items()} }\nours: {ours}"
        if group.assignor in ("range", "roundrobin"):
            assert {member: sorted(some) for member, some in ours.items()} == {
                member: one.assigned for member, one in java.items()
            }, about
        else:
            check_sticky(group, ours, {member: one.assigned for member, one in java.items()}, about)
        for member, subscribed in group.subscribed.items():
            assert encode_subscription(subscribed._replace(instance_id=None)) == java[member].sent, about
            assert decode_subscription(java[member].sent, subscribed.instance_id) == subscribed
            assert decode_assignment(java[member].given) == frozenset(java[member].assigned)


def check_sticky(
    group: Group,
    ours: dict[str, list[TopicPartition]],
    java: dict[str, list[TopicPartition]],
    about: str,
) -> None:
    """Check for equality if no member owned anything; otherwise for an equally even result that moves no more."""
    had = {member: set(had_before(group, member)) for member in group.subscribed}
    if not any(had.values()):
        assert {member: sorted(some) for member, some in ours.items()} == java, about
    if len({subscribed.topics for subscribed in group.subscribed.values()}) == 1:
        sizes, javas = sorted(map(len, ours.values())), sorted(map(len, java.values()))
        if group.assignor == "sticky":
            assert sizes == javas, about
        assert sum(sizes) == sum(javas), about  # partitions that move are not assigned yet
        assert kept(had, ours) == kept(had, java), about


def kept(had: dict[str, set[TopicPartition]], assigned: dict[str, list[TopicPartition]]) -> int:
    return sum(len(had[member] & set(some)) for member, some in assigned.items())
