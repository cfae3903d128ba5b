"""A checker for transactions: reports what a correct cluster could not have shown to clients.

It adds these operations to those of `testkit.history`:

| operation       | invoke                              | ok                                                               |
| send            | also `transaction`, its name        | unchanged: a log keeps aborted records too                       |
| commit, abort   | transaction                         | -                                                                |
| poll_committed  | topic, partition                    | records: (offset, value) ascending; the reader never seeks       |

Clients record the invocation of a commit before they send the request. A transaction without an invoked commit must therefore never
become visible. If a commit got no response, either all records of the transaction or none of them may be visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct, field

from testkit.history import Anomaly, Call, FinalRead, History, Place, calls_of

COMMIT, ABORT, POLL_COMMITTED = "commit", "abort", "poll_committed"


class Fate(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Transaction(Struct):
    name: str
    fate: Fate = Fate.ABORTED
    commit_number: int | None = None  # number of the event that first invoked the commit
    values: dict[str, Place] = field(default_factory=dict)


class Sight(Struct):
    """One record that a reader saw under read_committed."""

    place: Place
    offset: int
    value: str
    source: str
    number: int | None  # number of the poll's ok event; None for the final read


def transactions_of(calls: Sequence[Call]) -> dict[str, Transaction]:
    """Return all transactions by name, each with its fate."""
    found: dict[str, Transaction] = {}
    for call in sorted(calls, key=lambda call: call.begun.number):
        name = call.begun.value.get("transaction")
        if name is None:
            continue
        transaction = found.setdefault(name, Transaction(name))
        operation = call.begun.operation
        if operation == "send":
            transaction.values |= dict.fromkeys(call["values"], call.place)
        elif operation == COMMIT:
            if transaction.commit_number is None:
                transaction.commit_number = call.begun.number
            if transaction.fate is not Fate.COMMITTED:
                transaction.fate = Fate.COMMITTED if call.is_ok else Fate.UNKNOWN
        elif operation == ABORT and call.is_ok and transaction.fate is Fate.UNKNOWN:
            transaction.fate = Fate.ABORTED  # an acknowledged abort settles an unknown commit
    return found


def check_transactions(history: History, committed: FinalRead) -> list[Anomaly]:
    """Return the anomalies of all transactions.

    `committed` is what a new client read under read_committed at the end.
    """
    calls, _ = calls_of(history)
    transactions = transactions_of(calls)
    final = [
        Sight(place, offset, value, "read at the end", None)
        for place, records in committed.records.items()
        for offset, value in records
    ]
    polls = [call for call in calls if call.is_ok and call.begun.operation == POLL_COMMITTED]
    polled = [
        Sight(call.place, offset, value, f"read by {call.begun.process}", call.ended.number)
        for call in polls
        if call.ended is not None
        for offset, value in call["records"]
    ]
    return [
        *_contradictory_ends(calls),
        *_sights(transactions, [*polled, *final]),
        *_doubled(final),
        *_lost_and_torn(transactions, {sight.value for sight in final}),
        *_readers(polls, committed),
    ]


def _contradictory_ends(calls: Sequence[Call]) -> Iterator[Anomaly]:
    """Yield an anomaly for each transaction whose commit and abort were both acknowledged."""
    ends: dict[str, str] = {}
    for call in calls:
        if call.is_ok and call.begun.operation in (COMMIT, ABORT):
            name, operation = call["transaction"], call.begun.operation
            if ends.setdefault(name, operation) != operation:
                yield Anomaly("committed and aborted", f"{name}: both were acknowledged to {call.begun.process}")


def _sights(transactions: dict[str, Transaction], sights: Sequence[Sight]) -> Iterator[Anomaly]:
    """Yield an anomaly for each record that a read_committed reader should not have seen."""
    owners = {value: one for one in transactions.values() for value in one.values}
    for sight in sights:
        owner = owners.get(sight.value)
        where = f"{sight.place[0]}-{sight.place[1]} offset {sight.offset}: {sight.value!r} ({sight.source})"
        if owner is None:
            yield Anomaly("value from nowhere", where)
        elif owner.fate is Fate.ABORTED:
            yield Anomaly("aborted read", f"{where} of {owner.name}")
        elif owner.values[sight.value] != sight.place:
            yield Anomaly("value in a wrong place", f"{where} was sent to {owner.values[sight.value]}")
        elif sight.number is not None and owner.commit_number is not None and sight.number < owner.commit_number:
            yield Anomaly("precommitted read", f"{where} of {owner.name}, whose commit was not requested yet")


def _doubled(final: Sequence[Sight]) -> Iterator[Anomaly]:
    first: dict[str, Sight] = {}
    for sight in final:
        before = first.setdefault(sight.value, sight)
        if before is not sight:
            yield Anomaly(
                "doubled", f"{sight.value!r} at {before.place} {before.offset} and at {sight.place} {sight.offset}"
            )


def _lost_and_torn(transactions: dict[str, Transaction], there: set[str]) -> Iterator[Anomaly]:
    for one in transactions.values():
        missing = [value for value in one.values if value not in there]
        if not missing or one.fate is Fate.ABORTED:
            continue
        if len(missing) < len(one.values):
            text = f"{one.name} ({one.fate}): {len(missing)} of {len(one.values)} values are not there, like {missing[0]!r}"
            yield Anomaly("torn transaction", text)
        elif one.fate is Fate.COMMITTED:
            yield Anomaly("lost transaction", f"{one.name}: none of its {len(one.values)} values is there")


def _readers(polls: Sequence[Call], committed: FinalRead) -> Iterator[Anomaly]:
    """Yield an anomaly where a reader goes backwards, skips a record of the final read, or sees a different value."""
    final = {place: dict(records) for place, records in committed.records.items()}
    positions: dict[tuple[str, Place], int] = {}
    for call in polls:
        log = final.get(call.place, {})
        key = (call.begun.process, call.place)
        for offset, value in call["records"]:
            where = f"{call.begun.process} on {call.place[0]}-{call.place[1]}"
            position = positions.get(key, 0)
            if offset < position:
                yield Anomaly("non-monotonic poll", f"{where} was at {position} and got {value!r} at {offset}")
            skipped = [missed for missed in range(position, offset) if missed in log]
            if skipped:
                yield Anomaly("poll skip", f"{where} was at {position} and got {offset}, past {log[skipped[0]]!r}")
            if log.get(offset) != value:
                text = f"{where} got {value!r} at {offset}, where {log.get(offset)!r} is at the end"
                yield Anomaly("inconsistent offsets", text)
            positions[key] = offset + 1
