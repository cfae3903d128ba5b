"""The checker of group histories: what it must accept and what it must report."""

from __future__ import annotations

import pytest
from testkit.history import POWER_LOSS, History
from testkit.simulator.groups.checkers import check_groups
from testkit.simulator.groups.classic_members import assign_ranges
from testkit.simulator.groups.members import GIVE, HOLD, TAKE

PARTITION = ("t", 0)


class GroupHistory(History):
    def __init__(self) -> None:
        super().__init__(lambda: self.clock)
        self.clock = 0.0

    def take(self, member: str, until: float = 10.0, generation: int | None = None) -> None:
        self.note(
            TAKE, member=member, identity=member, group="g", places=[PARTITION], until=until, generation=generation
        )

    def give(self, member: str) -> None:
        self.note(GIVE, member=member, group="g", places=[PARTITION])

    def commit(self, member: str, offset: int) -> int:
        return self.invoke(member, "commit", group="g", place=PARTITION, offset=offset, generation=1)

    def committed(self, member: str, offset: int) -> None:
        self.ok(self.commit(member, offset))

    def read(self, offset: int) -> None:
        self.ok(self.invoke("reader", "fetch", group="g"), offsets=[[*PARTITION, offset]])

    def anomaly_kinds(self, *, is_flushed: bool = True) -> list[str]:
        return [anomaly.kind for anomaly in check_groups(self, is_flushed)]


def test_two_owners_of_a_partition_at_a_time_are_reported() -> None:
    story = GroupHistory()
    story.take("a")
    story.give("a")
    story.take("b")
    assert story.anomaly_kinds() == []
    story.take("a")
    assert story.anomaly_kinds() == ["two owners"]


def test_ownership_expires_unless_it_is_extended() -> None:
    story = GroupHistory()
    story.take("a", until=10.0)
    story.clock = 10.0
    story.take("b", until=20.0)
    assert story.anomaly_kinds() == []
    story.note(HOLD, member="b", group="g", until=30.0)
    story.clock = 25.0
    story.take("a", until=40.0)
    assert story.anomaly_kinds() == ["two owners"]


def test_a_second_assignment_or_an_older_generation_is_reported() -> None:
    story = GroupHistory()
    for member, generation in (("a", 3), ("a", 3), ("b", 4)):
        story.take(member, generation=generation)
        story.give(member)
    assert story.anomaly_kinds() == []
    story.take("a", generation=4)
    story.give("a")
    assert story.anomaly_kinds() == ["assigned twice"]
    story.take("b", generation=3)
    assert story.anomaly_kinds() == ["assigned twice", "generation went back", "assigned twice"]


def test_a_read_must_return_the_latest_acknowledged_commit() -> None:
    story = GroupHistory()
    story.read(-1)
    story.committed("a", 1)
    story.read(1)
    story.committed("a", 2)
    story.read(2)
    assert story.anomaly_kinds() == []
    story.read(1)
    story.read(-1)
    story.read(7)
    assert story.anomaly_kinds() == ["committed offset"] * 3


def test_an_unacknowledged_commit_may_take_effect_late_but_not_after_its_owner_left() -> None:
    story = GroupHistory()
    story.take("a")
    story.info(story.commit("a", 1))
    story.committed("a", 2)
    story.read(2)
    story.read(1)
    assert story.anomaly_kinds() == []
    story.give("a")
    story.take("b")
    story.committed("b", 3)
    story.read(1)
    assert story.anomaly_kinds() == ["committed offset"]


def test_a_read_that_misses_an_offset_already_read_is_reported() -> None:
    story = GroupHistory()
    story.committed("a", 1)
    story.info(story.commit("a", 2))
    story.read(1)
    story.read(2)
    assert story.anomaly_kinds() == []
    story.read(1)
    assert story.anomaly_kinds() == ["committed offset"]


def test_a_commit_of_a_former_owner_is_reported() -> None:
    story = GroupHistory()
    story.take("a", until=1.0)
    story.clock = 2.0
    story.take("b")
    story.fail(story.commit("a", 1))
    assert story.anomaly_kinds() == []
    story.committed("a", 2)
    assert story.anomaly_kinds() == ["commit of a former owner"]


def test_reading_a_refused_commit_is_reported() -> None:
    story = GroupHistory()
    story.fail(story.commit("a", 1), error="STALE_MEMBER_EPOCH")
    story.read(1)
    assert story.anomaly_kinds() == ["committed offset"]


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_power_loss_may_lose_only_unsynced_state(is_flushed: bool) -> None:
    story = GroupHistory()
    story.take("a")
    story.committed("a", 1)
    story.committed("a", 2)
    story.note(POWER_LOSS)
    story.take("b")
    story.read(1)
    assert story.anomaly_kinds(is_flushed=is_flushed) == (["two owners", "committed offset"] if is_flushed else [])
    if not is_flushed:
        story.read(2)  # either value may have survived, but not first one and then the other
        story.committed("b", 3)
        story.read(1)
        assert story.anomaly_kinds(is_flushed=False) == ["committed offset"] * 2


def test_assigned_ranges_are_disjoint_complete_and_only_of_subscribed_topics() -> None:
    assigned = assign_ranges({"a": ["t"], "b": ["t", "u"], "c": ["u"]}, {"t": 3, "u": 1, "v": 2})
    assert assigned == {"a": [("t", 0)], "b": [("t", 1), ("t", 2)], "c": [("u", 0)]}
