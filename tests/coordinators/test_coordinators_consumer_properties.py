"""No partition ever has two owners, and at rest each has one, whatever members, topics, network and coordinator do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.coordinators.consumer_clients import REBALANCE_MS, Client, settle
from tests.coordinators.group_harness import GroupHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.consumer.description import describe
from headrace.coordinators.group.consumer.members import MemberState

NAMES = ("red", "green", "blue")
SUBSCRIPTIONS = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)


class ConsumerGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, Any] = {"red": 5, "green": 2}
        self.harness = GroupHarness(self.topics, group_consumer_assignment_interval_ms=500)
        self.clients: list[Client] = []
        self.joined = 0

    def pick(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    @precondition(lambda self: len(self.clients) < 5)
    @rule(topics=SUBSCRIPTIONS, is_static=st.booleans(), assignor=st.sampled_from([None, "range", "uniform"]))
    def join(self, topics: Sequence[str], is_static: bool, assignor: str | None) -> None:
        self.joined += 1
        more = {"instance_id": f"i{self.joined}"} if is_static else {}
        client = Client(self.harness, f"m{self.joined}", *topics, **more, server_assignor=assignor)
        self.clients.append(client)
        client.beat()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def beat(self, number: int) -> None:
        self.pick(number).beat()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def lose_the_response(self, number: int) -> None:
        self.pick(number).lose()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9), is_committed=st.booleans())
    def commit_late(self, number: int, is_committed: bool) -> None:
        self.pick(number).beat_late(is_committed)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def refuse(self, number: int) -> None:
        client, before = self.pick(number), len(self.harness.journal.written)
        self.harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        client.lose()
        self.harness.journal.refusal = None
        assert len(self.harness.journal.written) == before

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9), topics=SUBSCRIPTIONS)
    def subscribe(self, number: int, topics: list[str]) -> None:
        client = self.pick(number)
        client.topics, client.sends_full_next = topics, True
        client.beat()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        client = self.pick(number)
        self.clients.remove(client)
        if client.epoch > 0:
            self.depart(client, -1)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def restart_static(self, number: int) -> None:
        client = self.pick(number)
        if "instance_id" in client.more and client.epoch > 0:
            self.depart(client, -2)
            self.joined += 1
            client.name = f"m{self.joined}"
            client.beat()

    def depart(self, client: Client, epoch: int) -> None:
        try:
            client.leave(epoch)
        except KafkaError as error:
            assert error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
            client.fenced()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def die(self, number: int) -> None:
        self.clients.remove(self.pick(number))

    @rule()
    def move_the_coordinator(self) -> None:
        self.harness.move()

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 6))
    def change_topics(self, name: str, count: int) -> None:
        had = self.topics.get(name, (0, 0))
        had_count, made = had if isinstance(had, tuple) else (had, 0)
        if count > had_count or (count and not had_count):
            self.topics[name] = (count, made or self.harness.image.offset * 10 + NAMES.index(name) + 1)
        elif count == 0:
            self.topics.pop(name, None)
        self.harness.set_topics(self.topics)

    @rule(duration_ms=st.sampled_from([100, 700, 5000, 20_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.harness.pass_time(duration_ms)
        for client in self.clients:
            # After so long without a response, a client must assume that it is fenced.
            if self.harness.now_ms - client.last_response_ms >= REBALANCE_MS:
                client.fenced()

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners: dict[tuple[bytes, int], str] = {}
        for client in self.clients:
            for place in client.working:
                assert place not in owners, f"{place} is {owners[place]}'s and {client.name}'s"
                owners[place] = client.name

    def teardown(self) -> None:
        """Check that everything is assigned and stable after a quiet time."""
        for client in self.clients:
            if self.harness.now_ms + 50_000 - client.last_response_ms >= REBALANCE_MS:
                client.fenced()
        self.harness.pass_time(50_000)  # sessions of dead members expire
        settle(self.harness, self.clients)
        expected = {name for client in self.clients for name in client.topics}
        topics = [topic for name, topic in self.harness.image.topics.items() if name in expected]
        assert sum(len(client.owned) for client in self.clients) == sum(len(topic.partitions) for topic in topics)
        self.no_partition_has_two_owners()
        if self.clients:
            group = self.harness.shard.consumers.groups["g"]
            assert describe(self.harness.shard, "g").group_state == "Stable"
            assert {member.state for member in group.members.values()} == {MemberState.STABLE}
            written = len(self.harness.journal.written)
            settle(self.harness, self.clients, 2)
            assert len(self.harness.journal.written) == written, "at rest nothing is written"


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
