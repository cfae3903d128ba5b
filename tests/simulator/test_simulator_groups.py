"""The checker of group histories: what it must accept and what it must report."""

from __future__ import annotations

import pytest
from testkit.history import POWER_LOSS, History
from testkit.simulator.groups.checkers import check_groups
from testkit.simulator.groups.classic_members import assign_ranges
from testkit.simulator.groups.members import GIVE, HOLD, TAKE

PLACE = ("t", 0)


class Story(History):
    def __init__(self) -> None:
        super().__init__(lambda: self.clock)
        self.clock = 0.0

    def take(self, member: str, until: float = 10.0, generation: int | None = None) -> None:
        self.note(TAKE, member=member, identity=member, group="g", places=[PLACE], until=until, generation=generation)

    def give(self, member: str) -> None:
        self.note(GIVE, member=member, group="g", places=[PLACE])

    def commit(self, member: str, offset: int) -> int:
        return self.invoke(member, "commit", group="g", place=PLACE, offset=offset, generation=1)

    def committed(self, member: str, offset: int) -> None:
        self.ok(self.commit(member, offset))

    def read(self, offset: int) -> None:
        self.ok(self.invoke("reader", "fetch", group="g"), offsets=[[*PLACE, offset]])

    def verdict(self, *, is_flushed: bool = True) -> list[str]:
        return [anomaly.kind for anomaly in check_groups(self, is_flushed)]


def test_a_partition_has_one_owner_at_a_time() -> None:
    story = Story()
    story.take("a")
    story.give("a")
    story.take("b")
    assert story.verdict() == []
    story.take("a")
    assert story.verdict() == ["two owners"]


def test_a_claim_ends_by_itself_unless_it_is_prolonged() -> None:
    story = Story()
    story.take("a", until=10.0)
    story.clock = 10.0
    story.take("b", until=20.0)
    assert story.verdict() == []
    story.note(HOLD, member="b", group="g", until=30.0)
    story.clock = 25.0
    story.take("a", until=40.0)
    assert story.verdict() == ["two owners"]


def test_a_generation_assigns_a_partition_once_and_never_goes_back() -> None:
    story = Story()
    for member, generation in (("a", 3), ("a", 3), ("b", 4)):
        story.take(member, generation=generation)
        story.give(member)
    assert story.verdict() == []
    story.take("a", generation=4)
    story.give("a")
    assert story.verdict() == ["assigned twice"]
    story.take("b", generation=3)
    assert story.verdict() == ["assigned twice", "generation went back", "assigned twice"]


def test_an_acknowledged_commit_is_seen_until_another_replaces_it() -> None:
    story = Story()
    story.read(-1)
    story.committed("a", 1)
    story.read(1)
    story.committed("a", 2)
    story.read(2)
    assert story.verdict() == []
    story.read(1)
    story.read(-1)
    story.read(7)
    assert story.verdict() == ["committed offset"] * 3


def test_a_commit_whose_answer_was_lost_may_come_late_but_not_after_its_owner_is_gone() -> None:
    story = Story()
    story.take("a")
    story.info(story.commit("a", 1))
    story.committed("a", 2)
    story.read(2)
    story.read(1)
    assert story.verdict() == []
    story.give("a")
    story.take("b")
    story.committed("b", 3)
    story.read(1)
    assert story.verdict() == ["committed offset"]


def test_what_one_reader_saw_no_later_one_may_miss() -> None:
    story = Story()
    story.committed("a", 1)
    story.info(story.commit("a", 2))
    story.read(1)
    story.read(2)
    assert story.verdict() == []
    story.read(1)
    assert story.verdict() == ["committed offset"]


def test_who_was_replaced_commits_no_more() -> None:
    story = Story()
    story.take("a", until=1.0)
    story.clock = 2.0
    story.take("b")
    story.fail(story.commit("a", 1))
    assert story.verdict() == []
    story.committed("a", 2)
    assert story.verdict() == ["commit of a former owner"]


def test_a_refused_commit_is_never_seen() -> None:
    story = Story()
    story.fail(story.commit("a", 1), error="STALE_MEMBER_EPOCH")
    story.read(1)
    assert story.verdict() == ["committed offset"]


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_power_loss_excuses_what_was_not_synced(is_flushed: bool) -> None:
    story = Story()
    story.take("a")
    story.committed("a", 1)
    story.committed("a", 2)
    story.note(POWER_LOSS)
    story.take("b")
    story.read(1)
    assert story.verdict(is_flushed=is_flushed) == (["two owners", "committed offset"] if is_flushed else [])
    if not is_flushed:
        story.read(2)  # either value may have survived, but not first one and then the other
        story.committed("b", 3)
        story.read(1)
        assert story.verdict(is_flushed=False) == ["committed offset"] * 2


def test_ranges_are_disjoint_complete_and_only_for_who_wants_them() -> None:
    assigned = assign_ranges({"a": ["t"], "b": ["t", "u"], "c": ["u"]}, {"t": 3, "u": 1, "v": 2})
    assert assigned == {"a": [("t", 0)], "b": [("t", 1), ("t", 2)], "c": [("u", 0)]}
