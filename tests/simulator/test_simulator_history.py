"""The history checker: silent about a good history, and each anomaly found by name."""

from __future__ import annotations

from typing import Any

import pytest
from testkit.history import POWER_LOSS, FinalRead, History, check

P = {"topic": "t", "partition": 0}


class HistoryBuilder:
    """A builder for short histories."""

    def __init__(self) -> None:
        self.history = History()

    def sent(self, values: str, offset: int | None, process: str = "p", *, once: bool = True) -> HistoryBuilder:
        self.history.ok(self.history.invoke(process, "send", **P, values=list(values), once=once), offset=offset)
        return self

    def lost(self, values: str, *, failed: bool = False) -> HistoryBuilder:
        call = self.history.invoke("p", "send", **P, values=list(values), once=True)
        if failed:
            self.history.fail(call, error="REFUSED")
        else:
            self.history.info(call, error="Disconnected")
        return self

    def read(self, position: int | None, *records: tuple[int, str], process: str = "c") -> HistoryBuilder:
        self.history.ok(self.history.invoke(process, "poll", **P, position=position), records=list(records))
        return self

    def refused(self, position: int) -> HistoryBuilder:
        self.history.fail(self.history.invoke("c", "poll", **P, position=position), error="OFFSET_OUT_OF_RANGE")
        return self

    def ends(self, offset: int) -> HistoryBuilder:
        self.history.ok(self.history.invoke("c", "latest", **P), offset=offset)
        return self

    def completed(self, operation: str, result: dict[str, Any], **value: Any) -> HistoryBuilder:
        self.history.ok(self.history.invoke("a", operation, **value), **result)
        return self

    def power_loss(self, durable: int = 0) -> HistoryBuilder:
        self.history.note(POWER_LOSS, durable=[["t", 0, durable]])
        return self

    def anomaly_kinds(self, final: str, topics: dict[str, str] | None = None) -> list[str]:
        """Return the kinds of anomalies found, each once."""
        read = FinalRead({("t", 0): list(enumerate(final))}, topics)
        return list(dict.fromkeys(anomaly.kind for anomaly in check(self.history, read)))


def test_a_valid_history_has_no_anomalies() -> None:
    builder = (
        HistoryBuilder()
        .sent("ab", 0)
        .lost("c")
        .sent("d", 3)
        .lost("e")
        .lost("f", failed=True)
        .read(0, (0, "a"), (1, "b"))
    )
    builder.read(None, (2, "c"), (3, "d")).ends(4).refused(9).read(1, (1, "b"), process="other")
    builder.completed("init_producer_id", {"producer_id": 1}).completed("init_producer_id", {"producer_id": 2})
    assert builder.anomaly_kinds("abcd") == []
    assert HistoryBuilder().sent("ab", None).anomaly_kinds("xab"[1:]) == []


@pytest.mark.parametrize(
    "builder, final, kind",
    [
        (HistoryBuilder().sent("ab", 0), "a", "unseen"),
        (HistoryBuilder().sent("ab", 0).lost("c"), "ac", "lost write"),
        (HistoryBuilder().sent("ab", None), "a", "lost write"),
        (HistoryBuilder().sent("ab", 0).read(0, (0, "a"), (1, "x")), "ab", "inconsistent offsets"),
        (HistoryBuilder().sent("a", 0).sent("b", 0, "q"), "a", "offset reuse"),
        (HistoryBuilder().lost("a").lost("b"), "aba", "duplicate"),
        (HistoryBuilder().sent("a", 0).read(0, (0, "a"), (1, "z")), "az", "value from nowhere"),
        (HistoryBuilder().lost("a", failed=True), "a", "failed write seen"),
        (HistoryBuilder().sent("a", 1).sent("b", 0), "ba", "non-monotonic send"),
        (HistoryBuilder().sent("abc", 0).read(0, (0, "a"), (2, "c")), "abc", "poll skip"),
        (HistoryBuilder().sent("abc", 0).read(0, (0, "a")).read(None, (2, "c")), "abc", "poll skip"),
        (HistoryBuilder().sent("abc", 0).read(1, (2, "c")), "abc", "poll skip"),
        (HistoryBuilder().sent("abc", 0).read(1, (1, "b")).read(None, (1, "b")), "abc", "non-monotonic poll"),
        (HistoryBuilder().sent("abc", 0).ends(2), "abc", "stale end"),
        (HistoryBuilder().sent("abc", 0).refused(3), "abc", "position refused"),
        (
            HistoryBuilder()
            .completed("init_producer_id", {"producer_id": 1})
            .completed("init_producer_id", {"producer_id": 1}),
            "",
            "producer id handed out twice",
        ),
        (HistoryBuilder().sent("abc", 0).power_loss(), "xbc", "lost write"),
        (HistoryBuilder().sent("abc", 0).power_loss(durable=2), "a", "unseen"),
        (HistoryBuilder().power_loss().sent("a", 0), "", "unseen"),
    ],
)
def test_each_anomaly_is_found(builder: HistoryBuilder, final: str, kind: str) -> None:
    assert kind in builder.anomaly_kinds(final)


def test_a_power_loss_may_lose_the_tail_and_reuse_its_offsets() -> None:
    builder = HistoryBuilder().sent("abc", 0).power_loss(durable=1).sent("x", 1).read(0, (0, "a"), (1, "x")).ends(2)
    assert builder.anomaly_kinds("ax") == []
    assert HistoryBuilder().sent("a", 0).read(0, (0, "a")).power_loss().refused(1).anomaly_kinds("") == []


def test_lost_and_reappearing_topics_are_reported() -> None:
    created = HistoryBuilder().completed("create_topic", {"id": "1"}, topic="t")
    assert created.anomaly_kinds("", {"t": "1"}) == []
    assert created.anomaly_kinds("", {"t": "2"}) == created.anomaly_kinds("", {}) == ["lost topic"]
    deleted = (
        HistoryBuilder()
        .completed("create_topic", {"id": "1"}, topic="t")
        .completed("delete_topic", {}, topic="t", id="1")
    )
    assert deleted.anomaly_kinds("", {}) == []
    assert deleted.anomaly_kinds("", {"t": "1"}) == ["deleted topic is back"]
    late = HistoryBuilder()
    late.history.info(late.history.invoke("a", "create_topic", topic="t"), error="Disconnected")
    late.completed("create_topic", {"id": "1"}, topic="t").completed("delete_topic", {}, topic="t", id="1")
    assert late.anomaly_kinds("", {"t": "2"}) == []


def test_records_of_a_deleted_topic_are_not_checked() -> None:
    history = History()
    send = history.invoke("p", "send", topic="t/1", partition=0, values=["a"], once=True)
    history.ok(send, offset=0)
    assert [anomaly.kind for anomaly in check(history, FinalRead({}))] == ["lost write"]
    history.ok(history.invoke("a", "delete_topic", topic="t", id="1"))
    assert check(history, FinalRead({})) == []


def test_a_send_without_a_response_may_or_may_not_have_happened() -> None:
    history = History()
    history.invoke("p", "send", **P, values=["a"], once=True)
    assert check(history, FinalRead({("t", 0): [(0, "a")]})) == []
    assert check(history, FinalRead({("t", 0): []})) == []
