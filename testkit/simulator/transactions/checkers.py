"""A checker for simulated transactions: finds in the history and the final read what a correct cluster cannot do.

Nothing may be lost: seeds with power losses sync all logs before they respond. The final read is therefore the truth, and every earlier
read must have seen a prefix of it. A transaction whose commit was acknowledged is visible. One whose commit was never requested, or was
refused, is not. Any other is visible as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from testkit.history import Anomaly, Event, History, Kind
from testkit.simulator.groups.offsets import UNANSWERED, UNEXPECTED
from testkit.simulator.readers import CORRUPT, READ_COMMITTED
from testkit.simulator.transactions.clients import END, INIT, NO_PRODUCER, OFFSETS, SEND
from testkit.simulator.transactions.readers import READ, STABLE, FinalTransactions, Place

FETCH = "fetch"
NEVER = 2**62
NOTHING = -1  # result of a fetch for a partition without a committed offset


class Transaction(Struct):
    name: str
    producer: tuple[int, int]
    begun: int  # number of its first event
    sent: dict[str, tuple[Place, int]] = field(default_factory=dict)  # acknowledged values with place and offset
    values: dict[str, Place] = field(default_factory=dict)  # all values, acknowledged or not
    group: str = ""
    offsets: dict[Place, int] = field(default_factory=dict)  # acknowledged offset commits
    commit_begun: int = NEVER  # number of the event that invoked the commit
    commit_ended: int = NEVER  # number of the event that acknowledged the commit
    refused: bool = False
    seen: set[str] = field(default_factory=set)  # values that are visible at the end

    @property
    def is_committed(self) -> bool:
        return self.commit_ended < NEVER or bool(self.seen)

    @property
    def may_be_committed(self) -> bool:
        return self.commit_begun < NEVER and not self.refused


def check_transactions(
    history: History,
    final: FinalTransactions,
    offsets: dict[tuple[str, Place], int],
    *,
    is_compacted: bool,
    may_be_stale: bool = False,
) -> list[Anomaly]:
    """Return all anomalies.

    `offsets` are the committed offsets of the groups at the end. With `is_compacted`, aborted records may have been removed. With
    `may_be_stale`, a former leader or coordinator that does not know yet that it lost this role may have served reads.
    """
    transactions = gather(history)
    for records in final.committed.values():
        for _, value in records:
            if (owner := transactions.get(_owner(value))) is not None:
                owner.seen.add(value)
    return [
        *_response_anomalies(history),
        *_identities(history),
        *_logs(transactions, final, is_compacted),
        *_fates(transactions),
        *_final_offsets(transactions, offsets),
        *_reads(history, transactions, final, is_compacted),
        *_stable(history, transactions, may_be_stale),
        *_offset_reads(history, transactions, may_be_stale),
    ]


def _owner(value: str) -> str:
    return value.rpartition(".")[0]


def gather(history: History) -> dict[str, Transaction]:
    found: dict[str, Transaction] = {}
    for event in history.events:
        if event.operation not in (SEND, OFFSETS, END):
            continue
        begun = history.events[event.call].value
        one = found.setdefault(begun["transaction"], Transaction(begun["transaction"], begun["producer"], event.number))
        if event.operation == SEND:
            if event.kind is Kind.INVOKE:
                one.values |= dict.fromkeys(begun["values"], begun["place"])
            elif event.kind is Kind.OK:
                for number, value in enumerate(begun["values"]):
                    one.sent[value] = (begun["place"], event.value["offset"] + number)
        elif event.operation == OFFSETS and event.kind is Kind.OK:
            one.group = begun["group"]
            one.offsets |= {(topic, index): offset for topic, index, offset in begun["offsets"]}
        elif event.operation == END and begun["commit"]:
            _commit(one, event)
    return found


def _commit(one: Transaction, event: Event) -> None:
    if event.kind is Kind.INVOKE:
        one.commit_begun = event.number
    elif event.kind is Kind.OK:
        one.commit_ended = event.number
    elif event.kind is Kind.FAIL:
        one.refused = True


def _response_anomalies(history: History) -> Iterator[Anomaly]:
    for event in history.events:
        if event.operation in (UNEXPECTED, UNANSWERED):
            yield Anomaly(event.operation, f"at {event.time:.3f}: {event.value}")
        elif event.kind is Kind.FAIL and event.value.get("error") == CORRUPT:
            yield Anomaly("corrupt batch", f"{event.process}: {event.value['text']}")


def _identities(history: History) -> Iterator[Anomaly]:
    """Yield an anomaly where two clients got the same producer id and epoch."""
    owners: dict[Any, str] = {}
    for event in history.events:
        if event.kind is not Kind.OK or event.operation not in (INIT, END):
            continue
        producer = event.value["producer" if event.operation == INIT else "next_producer"]
        if producer != NO_PRODUCER and owners.setdefault(producer, event.process) != event.process:
            yield Anomaly("identity given twice", f"{producer} to {owners[producer]} and to {event.process}")


# --- the final read


def _logs(transactions: dict[str, Transaction], final: FinalTransactions, is_compacted: bool) -> Iterator[Anomaly]:
    for place, log in final.logs.items():
        where: dict[str, int] = {}
        open_values: dict[int, list[tuple[int, str]]] = {}  # by producer id
        decided: list[tuple[int, str]] = []
        last: dict[str, tuple[int, str]] = {}  # number and value of the last record of each producer
        for entry in log:
            if entry.value is None:
                ended = open_values.pop(entry.producer_id, [])
                decided += ended if entry.commit else []
                continue
            owner = transactions.get(_owner(entry.value))
            if owner is None or owner.values.get(entry.value) != place:
                yield Anomaly("value from nowhere", f"{place} offset {entry.offset}: {entry.value!r}")
                continue
            if entry.value in where:
                yield Anomaly("duplicate", f"{place}: {entry.value!r} at {where[entry.value]} and at {entry.offset}")
            where[entry.value] = entry.offset
            process, number = owner.name.rpartition("-")[0], int(entry.value.rpartition(".")[2])
            before = last.get(process)
            if before is not None and before[0] >= number:
                yield Anomaly("order", f"{place} offset {entry.offset}: {entry.value!r} after {before[1]!r}")
            last[process] = (number, entry.value)
            open_values.setdefault(entry.producer_id, []).append((entry.offset, entry.value))
        yield from _decided(place, decided, open_values, final)
        for one in transactions.values():
            for value, (sent_to, offset) in one.sent.items():
                if sent_to == place and where.get(value) != offset and (one.is_committed or not is_compacted):
                    yield Anomaly("lost write", f"{place} offset {offset}: {value!r}, in the end at {where.get(value)}")


def _decided(
    place: Place, decided: list[tuple[int, str]], undecided: dict[int, list[tuple[int, str]]], final: FinalTransactions
) -> Iterator[Anomaly]:
    for producer_id, values in undecided.items():
        yield Anomaly("no end", f"{place}: {values} of producer {producer_id} have no marker")
    if sorted(decided) != final.committed[place]:
        shown = sorted(set(final.committed[place]) ^ set(decided))
        yield Anomaly("markers and reads", f"{place}: differ in {shown[:5]}")


def _fates(transactions: dict[str, Transaction]) -> Iterator[Anomaly]:
    for one in transactions.values():
        missing = sorted(set(one.sent) - one.seen)
        if one.seen and not one.may_be_committed:
            why = "its commit was refused" if one.refused else "no producer requested its commit"
            yield Anomaly("aborted read", f"{one.name}: {sorted(one.seen)} are seen, and {why}")
        elif one.seen and missing:
            yield Anomaly("torn transaction", f"{one.name}: {sorted(one.seen)} are seen, {missing} are not")
        elif one.commit_ended < NEVER and missing:
            yield Anomaly("lost transaction", f"{one.name}: was committed, {missing} are not seen")


def _by_place(transactions: dict[str, Transaction]) -> dict[tuple[str, Place], list[tuple[int, Transaction]]]:
    """Return the offsets by group and partition, in the order of their transactions.

    Of producers that share a transactional id, one can only commit what it began after it fenced the others. Producer ids have no
    order: each broker has its own block of them.
    """
    found: dict[tuple[str, Place], list[tuple[int, Transaction]]] = {}
    for one in sorted(transactions.values(), key=lambda one: one.begun):
        for place, offset in one.offsets.items():
            found.setdefault((one.group, place), []).append((offset, one))
    return found


def _final_offsets(transactions: dict[str, Transaction], offsets: dict[tuple[str, Place], int]) -> Iterator[Anomaly]:
    for key, committed in _by_place(transactions).items():
        expected = next((offset for offset, one in reversed(committed) if one.is_committed), NOTHING)
        if offsets.get(key, NOTHING) != expected:
            yield Anomaly("torn offsets", f"{key} has {offsets.get(key)}, its last committed transaction {expected}")


# --- reads during the run


def _reads(
    history: History, transactions: dict[str, Transaction], final: FinalTransactions, is_compacted: bool
) -> Iterator[Anomaly]:
    """Yield an anomaly where a read differs from the final read, or saw a transaction before its commit."""
    truth: dict[tuple[Place, int], dict[int, str]] = {}
    for place, log in final.logs.items():
        truth[place, 0] = {entry.offset: entry.value for entry in log if entry.value is not None}
        truth[place, READ_COMMITTED] = dict(final.committed[place])
    for event in history.events:
        if event.operation != READ or event.kind is not Kind.OK:
            continue
        request = history.events[event.call].value
        place, isolation = request["place"], request["isolation"]
        there = truth[place, isolation]
        shown: dict[int, str] = dict(event.value["records"])
        expected = {
            offset: there[offset] for offset in range(request["position"], event.value["following"]) if offset in there
        }
        if is_compacted and isolation != READ_COMMITTED:
            shown = {offset: value for offset, value in shown.items() if offset in expected}
        if shown != expected:
            wrong = sorted(set(shown.items()) ^ set(expected.items()))
            kind = "aborted read" if set(shown) - set(expected) else "poll skip"
            yield Anomaly(
                kind, f"{event.process} (isolation {isolation}) on {place} from {request['position']}: {wrong[:5]}"
            )
        if isolation == READ_COMMITTED:
            for value in shown.values():
                if transactions[_owner(value)].commit_begun > event.number:
                    yield Anomaly("precommitted read", f"{event.process}: {value!r} before its commit was requested")


def _stable(history: History, transactions: dict[str, Transaction], may_be_stale: bool) -> Iterator[Anomaly]:
    """Yield an anomaly where the last stable offset passes an undecided record or goes back."""
    undecided: dict[Place, list[tuple[int, int, str]]] = {}  # offset, number of the event that decides, value
    for one in transactions.values():
        if one.is_committed:
            for value, (place, offset) in one.sent.items():
                undecided.setdefault(place, []).append((offset, one.commit_begun, value))
    last_stable_offsets: dict[Place, list[tuple[int, int]]] = {}  # event number, last stable offset
    for event in history.events:
        if event.operation not in (READ, STABLE) or event.kind is not Kind.OK:
            continue
        place, stable = history.events[event.call].value["place"], event.value["stable"]
        for offset, until, value in undecided.get(place, []):
            if offset < stable and event.number < until:
                yield Anomaly(
                    "unstable offset", f"{event.process}: {place} is stable to {stable}, {value!r} is at {offset}"
                )
        before = last_stable_offsets.setdefault(place, [])
        highest = max((offset for number, offset in before if number < event.call), default=0)
        if stable < highest and not may_be_stale:
            yield Anomaly("unstable offset", f"{event.process}: {place} was stable to {highest}, now to {stable}")
        before.append((event.number, stable))


def _offset_reads(history: History, transactions: dict[str, Transaction], may_be_stale: bool) -> Iterator[Anomaly]:
    """Yield an anomaly where a fetch of stable offsets misses an acknowledged commit or shows one not yet requested."""
    places = _by_place(transactions)
    for event in history.events:
        if event.operation != FETCH or event.kind is not Kind.OK:
            continue
        group = history.events[event.call].value["group"]
        for topic, index, offset in event.value["offsets"]:
            known = places.get((group, (topic, index)), [])
            order = [at for at, _ in known]
            where = f"{event.process} read {offset} of {topic}-{index} of {group} (event {event.number})"
            if offset != NOTHING:
                if offset not in order:
                    yield Anomaly("aborted offset", f"{where}, which no producer has committed")
                    continue
                one = known[order.index(offset)][1]
                if not one.is_committed or one.commit_begun > event.number:
                    yield Anomaly("aborted offset", f"{where}, of {one.name}, which was not committed")
            later = known[order.index(offset) + 1 :] if offset != NOTHING else known
            for newer, one in later:
                if one.commit_ended < event.call and not may_be_stale:
                    yield Anomaly("lost offset", f"{where}, though {newer} of {one.name} was committed before")
