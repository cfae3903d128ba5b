"""The checker of transactions: it accepts good histories and names each anomaly."""

from __future__ import annotations

import pytest
from testkit.history import FinalRead, History
from testkit.history_transactions import ABORT, COMMIT, POLL_COMMITTED, check_transactions

PARTITION_BY_VALUE = {"a": ("t", 0), "b": ("t", 1), "c": ("t", 0), "x": ("t", 0)}  # partition by value


class HistoryBuilder:
    """A history built from short calls; values are letters, and a transaction is named by its values."""

    def __init__(self) -> None:
        self.history = History()

    def sent(self, transaction: str) -> HistoryBuilder:
        for value in transaction:
            topic, partition = PARTITION_BY_VALUE[value]
            given = {"topic": topic, "partition": partition, "values": [value], "once": True}
            self.history.ok(self.history.invoke("p", "send", transaction=transaction, **given), offset=None)
        return self

    def ended(self, transaction: str, operation: str, outcome: str = "ok") -> HistoryBuilder:
        call = self.history.invoke("p", operation, transaction=transaction)
        if outcome == "ok":
            self.history.ok(call)
        elif outcome == "info":
            self.history.info(call, error="Disconnected")
        return self

    def read(self, *records: tuple[int, str], process: str = "c", partition: int = 0) -> HistoryBuilder:
        call = self.history.invoke(process, POLL_COMMITTED, topic="t", partition=partition)
        self.history.ok(call, records=list(records))
        return self

    def anomaly_kinds(self, first: str, second: str = "") -> list[str]:
        """Return the kinds of anomalies, each once; a blank is an offset without a record."""
        read = FinalRead({("t", index): _records(values) for index, values in enumerate((first, second))})
        return list(dict.fromkeys(anomaly.kind for anomaly in check_transactions(self.history, read)))


def _records(values: str) -> list[tuple[int, str]]:
    return [(offset, value) for offset, value in enumerate(values) if value != " "]


def committed(transaction: str) -> HistoryBuilder:
    return HistoryBuilder().sent(transaction).ended(transaction, COMMIT)


def aborted(transaction: str) -> HistoryBuilder:
    return HistoryBuilder().sent(transaction).ended(transaction, ABORT)


def unknown(transaction: str, outcome: str = "info") -> HistoryBuilder:
    return HistoryBuilder().sent(transaction).ended(transaction, COMMIT, outcome)


@pytest.mark.parametrize(
    "builder, first, second",
    [
        (committed("ab").read((0, "a")).read((0, "b"), partition=1), "a", "b"),
        (committed("ab").sent("c").ended("c", COMMIT).read((0, "a"), (2, "c")), "a c ", "b"),
        (aborted("ab"), "", ""),
        (HistoryBuilder().sent("ab"), "", ""),
        (unknown("ab"), "", ""),
        (unknown("ab").read((0, "a")), "a", "b"),
        (unknown("ab", "silence"), "a", "b"),
        (unknown("ab").ended("ab", COMMIT), "a", "b"),
        (unknown("ab").ended("ab", ABORT), "", ""),
        (unknown("ab").ended("ab", ABORT, "info"), "a", "b"),
        (HistoryBuilder().sent("a").read().ended("a", COMMIT).read((0, "a")).read(), "a", ""),
    ],
)
def test_valid_histories_have_no_anomalies(builder: HistoryBuilder, first: str, second: str) -> None:
    assert builder.anomaly_kinds(first, second) == []


@pytest.mark.parametrize(
    "builder, first, second, kind",
    [
        (aborted("ab"), "a", "b", "aborted read"),
        (aborted("a").read((0, "a")), "a", "", "aborted read"),
        (HistoryBuilder().sent("a"), "a", "", "aborted read"),
        (unknown("a").ended("a", ABORT), "a", "", "aborted read"),
        (committed("ab"), "a", "", "torn transaction"),
        (unknown("ab"), "a", "", "torn transaction"),
        (unknown("ab", "silence"), "", "b", "torn transaction"),
        (committed("ab"), "", "", "lost transaction"),
        (unknown("ab").ended("ab", COMMIT), "", "", "lost transaction"),
        (committed("a"), "aa", "", "doubled"),
        (committed("a"), "a", "a", "value in a wrong place"),
        (committed("a"), "ax", "", "value from nowhere"),
        (HistoryBuilder().sent("a").read((0, "a")).ended("a", COMMIT), "a", "", "precommitted read"),
        (committed("a").ended("a", ABORT), "a", "", "committed and aborted"),
        (committed("a").sent("c").ended("c", COMMIT).read((1, "c")), "ac", "", "poll skip"),
        (committed("a").sent("c").ended("c", COMMIT).read((0, "a")).read((3, "x")), "acx", "", "poll skip"),
        (committed("a").sent("c").ended("c", COMMIT).read((1, "c")).read((0, "a")), "ac", "", "non-monotonic poll"),
        (committed("a").read((1, "a")), "a", "", "inconsistent offsets"),
    ],
)
def test_each_anomaly_is_reported_by_its_kind(builder: HistoryBuilder, first: str, second: str, kind: str) -> None:
    assert kind in builder.anomaly_kinds(first, second)
