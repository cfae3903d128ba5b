"""The history checker: silent about a good history, and each anomaly found by name."""

from __future__ import annotations

from typing import Any

import pytest
from testkit.history import POWER_LOSS, FinalRead, History, check

P = {"topic": "t", "partition": 0}


class Story:
    """A builder for short histories."""

    def __init__(self) -> None:
        self.history = History()

    def sent(self, values: str, offset: int | None, process: str = "p", *, once: bool = True) -> Story:
        self.history.ok(self.history.invoke(process, "send", **P, values=list(values), once=once), offset=offset)
        return self

    def lost(self, values: str, *, failed: bool = False) -> Story:
        call = self.history.invoke("p", "send", **P, values=list(values), once=True)
        if failed:
            self.history.fail(call, error="REFUSED")
        else:
            self.history.info(call, error="Disconnected")
        return self

    def read(self, position: int | None, *records: tuple[int, str], process: str = "c") -> Story:
        self.history.ok(self.history.invoke(process, "poll", **P, position=position), records=list(records))
        return self

    def refused(self, position: int) -> Story:
        self.history.fail(self.history.invoke("c", "poll", **P, position=position), error="OFFSET_OUT_OF_RANGE")
        return self

    def ends(self, offset: int) -> Story:
        self.history.ok(self.history.invoke("c", "latest", **P), offset=offset)
        return self

    def did(self, operation: str, answer: dict[str, Any], **value: Any) -> Story:
        self.history.ok(self.history.invoke("a", operation, **value), **answer)
        return self

    def power_loss(self, durable: int = 0) -> Story:
        self.history.note(POWER_LOSS, durable=[["t", 0, durable]])
        return self

    def verdict(self, final: str, topics: dict[str, str] | None = None) -> list[str]:
        """Return the kinds of anomalies found, each once."""
        read = FinalRead({("t", 0): list(enumerate(final))}, topics)
        return list(dict.fromkeys(anomaly.kind for anomaly in check(self.history, read)))


def test_a_good_history() -> None:
    story = Story().sent("ab", 0).lost("c").sent("d", 3).lost("e").lost("f", failed=True).read(0, (0, "a"), (1, "b"))
    story.read(None, (2, "c"), (3, "d")).ends(4).refused(9).read(1, (1, "b"), process="other")
    story.did("init_producer_id", {"producer_id": 1}).did("init_producer_id", {"producer_id": 2})
    assert story.verdict("abcd") == []
    assert Story().sent("ab", None).verdict("xab"[1:]) == []


@pytest.mark.parametrize(
    "story, final, kind",
    [
        (Story().sent("ab", 0), "a", "unseen"),
        (Story().sent("ab", 0).lost("c"), "ac", "lost write"),
        (Story().sent("ab", None), "a", "lost write"),
        (Story().sent("ab", 0).read(0, (0, "a"), (1, "x")), "ab", "inconsistent offsets"),
        (Story().sent("a", 0).sent("b", 0, "q"), "a", "offset reuse"),
        (Story().lost("a").lost("b"), "aba", "duplicate"),
        (Story().sent("a", 0).read(0, (0, "a"), (1, "z")), "az", "value from nowhere"),
        (Story().lost("a", failed=True), "a", "failed write seen"),
        (Story().sent("a", 1).sent("b", 0), "ba", "non-monotonic send"),
        (Story().sent("abc", 0).read(0, (0, "a"), (2, "c")), "abc", "poll skip"),
        (Story().sent("abc", 0).read(0, (0, "a")).read(None, (2, "c")), "abc", "poll skip"),
        (Story().sent("abc", 0).read(1, (2, "c")), "abc", "poll skip"),
        (Story().sent("abc", 0).read(1, (1, "b")).read(None, (1, "b")), "abc", "non-monotonic poll"),
        (Story().sent("abc", 0).ends(2), "abc", "stale end"),
        (Story().sent("abc", 0).refused(3), "abc", "position refused"),
        (
            Story().did("init_producer_id", {"producer_id": 1}).did("init_producer_id", {"producer_id": 1}),
            "",
            "producer id handed out twice",
        ),
        (Story().sent("abc", 0).power_loss(), "xbc", "lost write"),
        (Story().sent("abc", 0).power_loss(durable=2), "a", "unseen"),
        (Story().power_loss().sent("a", 0), "", "unseen"),
    ],
)
def test_each_anomaly_is_found(story: Story, final: str, kind: str) -> None:
    assert kind in story.verdict(final)


def test_a_power_loss_may_take_a_tail_and_the_offsets_are_used_again() -> None:
    story = Story().sent("abc", 0).power_loss(durable=1).sent("x", 1).read(0, (0, "a"), (1, "x")).ends(2)
    assert story.verdict("ax") == []
    assert Story().sent("a", 0).read(0, (0, "a")).power_loss().refused(1).verdict("") == []


def test_topics() -> None:
    created = Story().did("create_topic", {"id": "1"}, topic="t")
    assert created.verdict("", {"t": "1"}) == []
    assert created.verdict("", {"t": "2"}) == created.verdict("", {}) == ["lost topic"]
    deleted = Story().did("create_topic", {"id": "1"}, topic="t").did("delete_topic", {}, topic="t", id="1")
    assert deleted.verdict("", {}) == []
    assert deleted.verdict("", {"t": "1"}) == ["deleted topic is back"]
    late = Story()
    late.history.info(late.history.invoke("a", "create_topic", topic="t"), error="Disconnected")
    late.did("create_topic", {"id": "1"}, topic="t").did("delete_topic", {}, topic="t", id="1")
    assert late.verdict("", {"t": "2"}) == []


def test_records_of_a_deleted_topic_are_nobodys_business() -> None:
    history = History()
    send = history.invoke("p", "send", topic="t/1", partition=0, values=["a"], once=True)
    history.ok(send, offset=0)
    assert [anomaly.kind for anomaly in check(history, FinalRead({}))] == ["lost write"]
    history.ok(history.invoke("a", "delete_topic", topic="t", id="1"))
    assert check(history, FinalRead({})) == []


def test_a_call_that_never_ended_may_have_happened() -> None:
    history = History()
    history.invoke("p", "send", **P, values=["a"], once=True)
    assert check(history, FinalRead({("t", 0): [(0, "a")]})) == []
    assert check(history, FinalRead({("t", 0): []})) == []
