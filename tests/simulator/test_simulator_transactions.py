"""The checker of transaction histories: what it must accept and what it must report."""

from __future__ import annotations

from testkit.history import History
from testkit.simulator.readers import READ_COMMITTED, READ_UNCOMMITTED
from testkit.simulator.transactions.checkers import check_transactions
from testkit.simulator.transactions.clients import END, INIT, OFFSETS, SEND
from testkit.simulator.transactions.readers import (
    READ,
    STABLE,
    Batch,
    Entry,
    FinalTransactions,
    Place,
    without_aborted,
)

from headrace.protocol.messages.fetch import FetchResponse

PARTITIONS: tuple[Place, Place] = (("t", 0), ("t", 1))
PRODUCER = 7


class TransactionHistory(History):
    """One producer; transaction n has epoch n, and its values are p-n.0, p-n.1 and so on."""

    def __init__(self) -> None:
        super().__init__()
        self.final = FinalTransactions({place: [] for place in PARTITIONS}, {place: [] for place in PARTITIONS})
        self.offsets: dict[tuple[str, Place], int] = {}
        self._sent = 0

    def name(self, number: int) -> dict[str, object]:
        return {"transaction": f"p-{number}", "producer": (PRODUCER, number)}

    def send(self, number: int, *places: Place, offset: int = 0) -> None:
        for place in places:
            value = f"p-{number}.{self._sent}"
            self._sent += 1
            self.ok(self.invoke("p", SEND, place=place, values=[value], **self.name(number)), offset=offset)
            self.final.logs[place].append(Entry(offset, PRODUCER, value))

    def commit_offset(self, number: int, offset: int) -> None:
        offsets = [[*PARTITIONS[0], offset]]
        self.ok(self.invoke("p", OFFSETS, group="g", offsets=offsets, **self.name(number)))

    def begin_end(self, number: int, *, commit: bool) -> int:
        return self.invoke("p", END, commit=commit, **self.name(number))

    def end(self, number: int, *, commit: bool) -> None:
        self.ok(self.begin_end(number, commit=commit), next_producer=(PRODUCER, number + 1))

    def mark(self, number: int, *places: Place, commit: bool) -> None:
        """Append markers to the final logs and, if `commit`, the values to the committed ones."""
        for place in places:
            log = self.final.logs[place]
            values = [(one.offset, one.value) for one in log if one.value and one.value.startswith(f"p-{number}.")]
            log.append(Entry(log[-1].offset + 1, PRODUCER, None, commit))
            self.final.committed[place] += values if commit else []

    def read(self, place: Place, *records: tuple[int, str], following: int, isolation: int = READ_COMMITTED) -> None:
        call = self.invoke("r", READ, place=place, position=0, isolation=isolation)
        self.ok(call, records=list(records), following=following, stable=following)

    def stable(self, place: Place, offset: int) -> None:
        self.ok(self.invoke("r", STABLE, place=place), stable=offset)

    def anomaly_kinds(self) -> list[str]:
        return [one.kind for one in check_transactions(self, self.final, self.offsets, is_compacted=False)]


def committed() -> TransactionHistory:
    story = TransactionHistory()
    story.send(1, *PARTITIONS)
    story.end(1, commit=True)
    story.mark(1, *PARTITIONS, commit=True)
    return story


def test_fully_committed_and_fully_aborted_transactions_have_no_anomalies() -> None:
    assert committed().anomaly_kinds() == []
    for end in (True, False):
        story = TransactionHistory()
        story.send(1, *PARTITIONS)
        if end:
            story.begin_end(1, commit=True)  # without a response
        story.mark(1, *PARTITIONS, commit=False)
        assert story.anomaly_kinds() == []


def test_an_acknowledged_commit_that_was_aborted_is_a_lost_transaction() -> None:
    story = TransactionHistory()
    story.send(1, *PARTITIONS)
    story.end(1, commit=True)
    story.mark(1, *PARTITIONS, commit=False)
    assert story.anomaly_kinds() == ["lost transaction"]


def test_a_partially_committed_transaction_is_torn() -> None:
    story = TransactionHistory()
    story.send(1, *PARTITIONS)
    story.begin_end(1, commit=True)
    story.mark(1, PARTITIONS[0], commit=True)
    story.mark(1, PARTITIONS[1], commit=False)
    assert story.anomaly_kinds() == ["torn transaction"]


def test_a_commit_marker_after_an_abort_or_a_refused_commit_is_reported() -> None:
    for is_refused in (False, True):
        story = TransactionHistory()
        story.send(1, *PARTITIONS)
        if is_refused:
            story.fail(story.begin_end(1, commit=True))
        else:
            story.end(1, commit=False)
        story.mark(1, *PARTITIONS, commit=True)
        assert story.anomaly_kinds() == ["aborted read"]


def test_a_missing_marker_and_reads_that_contradict_a_marker_are_reported() -> None:
    story = TransactionHistory()
    story.send(1, PARTITIONS[0])
    assert story.anomaly_kinds() == ["no end"]
    story.mark(1, PARTITIONS[0], commit=False)
    assert story.anomaly_kinds() == []
    story.final.committed[PARTITIONS[0]] = [(0, "p-1.0")]
    assert story.anomaly_kinds() == ["markers and reads", "aborted read"]


def test_duplicate_reordered_and_lost_records_are_reported() -> None:
    story = committed()
    story.final.logs[PARTITIONS[0]].append(Entry(2, PRODUCER, "p-1.0"))
    story.mark(1, PARTITIONS[0], commit=False)
    assert story.anomaly_kinds() == ["duplicate", "order", "lost write"]
    story = committed()
    story.final.logs[PARTITIONS[1]].clear()
    story.final.committed[PARTITIONS[1]].clear()
    assert story.anomaly_kinds() == ["lost write", "torn transaction"]


def test_a_read_that_skips_a_record_is_reported() -> None:
    story = committed()
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        story.read(PARTITIONS[0], (0, "p-1.0"), following=2, isolation=isolation)
    assert story.anomaly_kinds() == []
    story.read(PARTITIONS[0], following=2)
    assert story.anomaly_kinds() == ["poll skip"]


def test_reading_aborted_or_uncommitted_records_is_reported() -> None:
    story = TransactionHistory()
    story.send(1, PARTITIONS[0])
    story.read(PARTITIONS[0], (0, "p-1.0"), following=1, isolation=READ_UNCOMMITTED)
    story.end(1, commit=False)
    story.mark(1, PARTITIONS[0], commit=False)
    assert story.anomaly_kinds() == []
    story.read(PARTITIONS[0], (0, "p-1.0"), following=1)
    assert story.anomaly_kinds() == ["aborted read", "precommitted read"]


def test_a_stable_offset_that_recedes_or_passes_an_open_transaction_is_reported() -> None:
    story = TransactionHistory()
    story.send(1, PARTITIONS[0])
    story.stable(PARTITIONS[0], 0)
    story.end(1, commit=True)
    story.mark(1, PARTITIONS[0], commit=True)
    story.stable(PARTITIONS[0], 2)
    assert story.anomaly_kinds() == []
    story.stable(PARTITIONS[0], 1)
    assert story.anomaly_kinds() == ["unstable offset"]
    story = TransactionHistory()
    story.send(1, PARTITIONS[0])
    story.stable(PARTITIONS[0], 1)
    story.end(1, commit=True)
    story.mark(1, PARTITIONS[0], commit=True)
    assert story.anomaly_kinds() == ["unstable offset"]


def test_group_offsets_that_differ_from_their_transaction_are_reported() -> None:
    story = TransactionHistory()
    for number, commit in ((1, True), (2, False)):
        story.send(number, PARTITIONS[0], offset=number * 2)
        story.commit_offset(number, 10 * number)
        story.end(number, commit=commit)
        story.mark(number, PARTITIONS[0], commit=commit)
    story.offsets["g", PARTITIONS[0]] = 10
    story.ok(story.invoke("r", "fetch", group="g"), offsets=[[*PARTITIONS[0], 10]])
    assert story.anomaly_kinds() == []
    story.offsets["g", PARTITIONS[0]] = 20
    assert story.anomaly_kinds() == ["torn offsets"]
    story.offsets["g", PARTITIONS[0]] = 10
    for offset, kind in ((20, "aborted offset"), (30, "aborted offset"), (-1, "lost offset")):
        call = story.invoke("r", "fetch", group="g")
        story.ok(call, offsets=[[*PARTITIONS[0], offset]])
        assert kind in story.anomaly_kinds()


def test_a_producer_identity_assigned_twice_is_reported() -> None:
    story = committed()
    story.ok(story.invoke("q", INIT), producer=(PRODUCER, 2))
    assert story.anomaly_kinds() == ["identity given twice"]


def test_a_reader_skips_aborted_records_up_to_their_marker() -> None:
    def batch(offset: int, producer_id: int, value: str | None) -> Batch:
        return Batch(offset, [Entry(offset, producer_id, value)])

    batches = [batch(0, 1, "a"), batch(1, 2, "b"), batch(2, 1, None), batch(3, 1, "c"), batch(4, 2, None)]
    aborted = [FetchResponse.AbortedTransaction(1, 0)]
    assert [one.value for one in without_aborted(batches, aborted)] == ["b", "c"]
