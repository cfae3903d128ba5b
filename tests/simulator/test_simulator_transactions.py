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

PLACES: tuple[Place, Place] = (("t", 0), ("t", 1))
PRODUCER = 7


class Story(History):
    """One producer; transaction n has epoch n, and its values are p-n.0, p-n.1 and so on."""

    def __init__(self) -> None:
        super().__init__()
        self.final = FinalTransactions({place: [] for place in PLACES}, {place: [] for place in PLACES})
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
        offsets = [[*PLACES[0], offset]]
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

    def verdict(self) -> list[str]:
        return [one.kind for one in check_transactions(self, self.final, self.offsets, is_compacted=False)]


def committed() -> Story:
    story = Story()
    story.send(1, *PLACES)
    story.end(1, commit=True)
    story.mark(1, *PLACES, commit=True)
    return story


def test_a_transaction_is_there_as_a_whole_or_not_at_all() -> None:
    assert committed().verdict() == []
    for end in (True, False):
        story = Story()
        story.send(1, *PLACES)
        if end:
            story.begin_end(1, commit=True)  # without a response
        story.mark(1, *PLACES, commit=False)
        assert story.verdict() == []


def test_a_commit_that_was_acknowledged_is_there() -> None:
    story = Story()
    story.send(1, *PLACES)
    story.end(1, commit=True)
    story.mark(1, *PLACES, commit=False)
    assert story.verdict() == ["lost transaction"]


def test_half_a_transaction_is_torn() -> None:
    story = Story()
    story.send(1, *PLACES)
    story.begin_end(1, commit=True)
    story.mark(1, PLACES[0], commit=True)
    story.mark(1, PLACES[1], commit=False)
    assert story.verdict() == ["torn transaction"]


def test_what_nobody_wanted_or_was_granted_is_not_seen() -> None:
    for is_refused in (False, True):
        story = Story()
        story.send(1, *PLACES)
        if is_refused:
            story.fail(story.begin_end(1, commit=True))
        else:
            story.end(1, commit=False)
        story.mark(1, *PLACES, commit=True)
        assert story.verdict() == ["aborted read"]


def test_every_transaction_has_an_end_and_readers_are_told_the_same() -> None:
    story = Story()
    story.send(1, PLACES[0])
    assert story.verdict() == ["no end"]
    story.mark(1, PLACES[0], commit=False)
    assert story.verdict() == []
    story.final.committed[PLACES[0]] = [(0, "p-1.0")]
    assert story.verdict() == ["markers and reads", "aborted read"]


def test_records_are_there_once_in_order_and_where_they_were_acknowledged() -> None:
    story = committed()
    story.final.logs[PLACES[0]].append(Entry(2, PRODUCER, "p-1.0"))
    story.mark(1, PLACES[0], commit=False)
    assert story.verdict() == ["duplicate", "order", "lost write"]
    story = committed()
    story.final.logs[PLACES[1]].clear()
    story.final.committed[PLACES[1]].clear()
    assert story.verdict() == ["lost write", "torn transaction"]


def test_readers_see_the_beginning_of_what_is_there_in_the_end() -> None:
    story = committed()
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        story.read(PLACES[0], (0, "p-1.0"), following=2, isolation=isolation)
    assert story.verdict() == []
    story.read(PLACES[0], following=2)
    assert story.verdict() == ["poll skip"]


def test_nothing_is_read_that_is_aborted_or_not_yet_committed() -> None:
    story = Story()
    story.send(1, PLACES[0])
    story.read(PLACES[0], (0, "p-1.0"), following=1, isolation=READ_UNCOMMITTED)
    story.end(1, commit=False)
    story.mark(1, PLACES[0], commit=False)
    assert story.verdict() == []
    story.read(PLACES[0], (0, "p-1.0"), following=1)
    assert story.verdict() == ["aborted read", "precommitted read"]


def test_what_is_stable_is_decided_and_stays_so() -> None:
    story = Story()
    story.send(1, PLACES[0])
    story.stable(PLACES[0], 0)
    story.end(1, commit=True)
    story.mark(1, PLACES[0], commit=True)
    story.stable(PLACES[0], 2)
    assert story.verdict() == []
    story.stable(PLACES[0], 1)
    assert story.verdict() == ["unstable offset"]
    story = Story()
    story.send(1, PLACES[0])
    story.stable(PLACES[0], 1)
    story.end(1, commit=True)
    story.mark(1, PLACES[0], commit=True)
    assert story.verdict() == ["unstable offset"]


def test_offsets_have_the_fate_of_their_transaction() -> None:
    story = Story()
    for number, commit in ((1, True), (2, False)):
        story.send(number, PLACES[0], offset=number * 2)
        story.commit_offset(number, 10 * number)
        story.end(number, commit=commit)
        story.mark(number, PLACES[0], commit=commit)
    story.offsets["g", PLACES[0]] = 10
    story.ok(story.invoke("r", "fetch", group="g"), offsets=[[*PLACES[0], 10]])
    assert story.verdict() == []
    story.offsets["g", PLACES[0]] = 20
    assert story.verdict() == ["torn offsets"]
    story.offsets["g", PLACES[0]] = 10
    for offset, kind in ((20, "aborted offset"), (30, "aborted offset"), (-1, "lost offset")):
        call = story.invoke("r", "fetch", group="g")
        story.ok(call, offsets=[[*PLACES[0], offset]])
        assert kind in story.verdict()


def test_an_identity_is_given_once() -> None:
    story = committed()
    story.ok(story.invoke("q", INIT), producer=(PRODUCER, 2))
    assert story.verdict() == ["identity given twice"]


def test_a_reader_leaves_out_what_is_listed_as_aborted_up_to_its_marker() -> None:
    def batch(offset: int, producer_id: int, value: str | None) -> Batch:
        return Batch(offset, [Entry(offset, producer_id, value)])

    batches = [batch(0, 1, "a"), batch(1, 2, "b"), batch(2, 1, None), batch(3, 1, "c"), batch(4, 2, None)]
    aborted = [FetchResponse.AbortedTransaction(1, 0)]
    assert [one.value for one in without_aborted(batches, aborted)] == ["b", "c"]
