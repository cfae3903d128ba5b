"""A history of what clients did and saw, and a checker that reports what a correct cluster could not have done.

A call is invoked, and ends as `ok`, as `fail` (it certainly did not happen) or as `info` (the outcome is unknown). The operations:

| operation          | invoke                                       | ok                                  |
| send               | topic, partition, values, once               | offset of the first value           |
| poll               | topic, partition, position (None: continue)  | records: (offset, value) ascending  |
| seek               | topic, partition, position                   | -                                   |
| latest             | topic, partition                             | offset: the end of the log          |
| init_producer_id   | -                                            | producer_id                         |
| create_topic       | topic                                        | id                                  |
| delete_topic       | topic, optionally its id                     | -                                   |

Values are unique. `once` means that the value may be in the log at most once (the producer is idempotent, or never retries). A
`power_loss` noted by the harness begins a new era. It may remove unsynced records, but only a tail of each partition, and only from
the offset below which the harness knows that the log was on disk (`durable`: topic, partition, offset).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct, field

Place = tuple[str, int]  # topic and partition

POWER_LOSS = "power_loss"


class Kind(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Event(NamedTuple):
    number: int
    time: float
    kind: Kind
    process: str
    operation: str
    call: int  # the number of the event that invoked it
    value: dict[str, Any]


class Anomaly(NamedTuple):
    kind: str
    text: str


class History:
    """Events that clients record as they run, in the order in which they happened."""

    def __init__(
        self, now: Callable[[], float] = lambda: 0.0, on_event: Callable[[Event], None] = lambda event: None
    ) -> None:
        self._now = now
        self._on_event = on_event  # called with each event as it happens
        self.events: list[Event] = []

    def invoke(self, process: str, operation: str, **value: Any) -> int:
        return self._add(Kind.INVOKE, process, operation, len(self.events), value)

    def ok(self, call: int, **value: Any) -> None:
        self._end(Kind.OK, call, value)

    def fail(self, call: int, **value: Any) -> None:
        """End a call that certainly had no effect; use `info` where that is not certain."""
        self._end(Kind.FAIL, call, value)

    def info(self, call: int, **value: Any) -> None:
        self._end(Kind.INFO, call, value)

    def note(self, operation: str, **value: Any) -> None:
        """Record an event of the cluster itself, such as a power loss."""
        self._add(Kind.INFO, "", operation, len(self.events), value)

    def _end(self, kind: Kind, call: int, value: dict[str, Any]) -> None:
        begun = self.events[call]
        assert begun.kind is Kind.INVOKE, f"call {call} was not invoked"
        self._add(kind, begun.process, begun.operation, call, value)

    def _add(self, kind: Kind, process: str, operation: str, call: int, value: dict[str, Any]) -> int:
        event = Event(len(self.events), self._now(), kind, process, operation, call, value)
        self.events.append(event)
        self._on_event(event)
        return event.number


class FinalRead(Struct):
    """All records that a new client read at the end. `topics` maps names to ids; None if topics were not listed."""

    records: dict[Place, list[tuple[int, str]]]
    topics: dict[str, str] | None = None


class Call(Struct):
    begun: Event
    ended: Event | None
    era: int  # the era in which the call ended: what it saw was true then

    @property
    def is_ok(self) -> bool:
        return self.ended is not None and self.ended.kind is Kind.OK

    @property
    def place(self) -> Place:
        value = self.begun.value
        partition = self.ended.value.get("partition") if self.ended is not None else None
        return value["topic"], value["partition"] if partition is None else partition

    def __getitem__(self, name: str) -> Any:
        """Return a value of the event that ended the call, or else of the one that invoked it."""
        if self.ended is not None and name in self.ended.value:
            return self.ended.value[name]
        return self.begun.value[name]


def durable_of(history: History) -> list[dict[Place, int]]:
    """Return for each era that ended in a power loss the offsets below which records had to survive it."""
    return [
        {(topic, partition): offset for topic, partition, offset in event.value.get("durable", [])}
        for event in history.events
        if event.operation == POWER_LOSS
    ]


def calls_of(history: History) -> tuple[list[Call], int]:
    """Return all calls by the order in which they ended, unended ones last, and the number of the last era."""
    era = 0
    calls: list[Call] = []
    open_calls: dict[int, Event] = {}
    for event in history.events:
        if event.kind is Kind.INVOKE:
            open_calls[event.number] = event
        elif event.operation == POWER_LOSS:
            era += 1
        elif event.call in open_calls:
            calls.append(Call(open_calls.pop(event.call), event, era))
    calls += [Call(begun, None, era) for begun in open_calls.values()]
    return calls, era


class Logs(Struct):
    """What is known of each log in each era: the value at each offset, and the source of that knowledge."""

    last_era: int
    durable: list[dict[Place, int]]
    known: dict[tuple[Place, int], dict[int, tuple[str, str]]] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)

    def learn(self, place: Place, era: int, offset: int, value: str, source: str) -> None:
        log = self.known.setdefault((place, era), {})
        before = log.setdefault(offset, (value, source))
        if before[0] != value:
            both_sent = source.startswith("acknowledged") and before[1].startswith("acknowledged")
            self.anomalies.append(
                Anomaly(
                    "offset reuse" if both_sent else "inconsistent offsets",
                    f"{_text(place)} offset {offset}: {before[0]!r} ({before[1]}) and {value!r} ({source})",
                )
            )

    def at(self, place: Place, era: int) -> Mapping[int, tuple[str, str]]:
        return self.known.get((place, era), {})


def check(history: History, final_read: FinalRead) -> list[Anomaly]:
    """Return everything in the history that a correct cluster could not have done."""
    calls, last_era = calls_of(history)
    logs = Logs(last_era, durable_of(history))
    for call in calls:
        if call.is_ok and call.begun.operation == "send" and call["offset"] is not None:
            for number, value in enumerate(call["values"]):
                logs.learn(
                    call.place, call.era, call["offset"] + number, value, f"acknowledged to {call.begun.process}"
                )
        elif call.is_ok and call.begun.operation == "poll":
            for offset, value in call["records"]:
                logs.learn(call.place, call.era, offset, value, f"read by {call.begun.process}")
    for place, records in final_read.records.items():
        for offset, value in records:
            logs.learn(place, last_era, offset, value, "read at the end")
    return [
        *logs.anomalies,
        *_unknown_values(calls, logs),
        *_duplicates(calls, logs),
        *_lost_writes(calls, logs, final_read),
        *_unordered_sends(calls),
        *_polls(calls, logs),
        *_ends(calls),
        *_producer_ids(calls),
        *_topics(calls, final_read),
    ]


def _text(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _unknown_values(calls: Sequence[Call], logs: Logs) -> Iterator[Anomaly]:
    sent: set[str] = set()
    failed: set[str] = set()
    for call in calls:
        if call.begun.operation == "send":
            sent.update(call["values"])
            if call.ended is not None and call.ended.kind is Kind.FAIL:
                failed.update(call["values"])
    for (place, _), log in logs.known.items():
        for offset, (value, source) in sorted(log.items()):
            if value not in sent:
                yield Anomaly("value from nowhere", f"{_text(place)} offset {offset}: {value!r} ({source})")
            elif value in failed:
                yield Anomaly("failed write seen", f"{_text(place)} offset {offset}: {value!r} ({source})")


def _duplicates(calls: Sequence[Call], logs: Logs) -> Iterator[Anomaly]:
    once = {value for call in calls if call.begun.operation == "send" and call["once"] for value in call["values"]}
    for (place, era), log in logs.known.items():
        found: dict[str, int] = {}
        for offset, (value, source) in sorted(log.items()):
            if value in once and found.setdefault(value, offset) != offset:
                yield Anomaly(
                    "duplicate", f"{_text(place)} era {era}: {value!r} at {found[value]} and at {offset} ({source})"
                )


def _lost_writes(calls: Sequence[Call], logs: Logs, final_read: FinalRead) -> Iterator[Anomaly]:
    gone = {_deleted(call) for call in calls if call.begun.operation == "delete_topic" and not _failed(call)}
    for (place, era), log in logs.known.items():
        if place not in final_read.records:
            if place[0] not in gone:
                yield Anomaly("lost write", f"{_text(place)} could not be read at the end, it had {len(log)} records")
            continue
        final = dict(final_read.records[place])
        end = max(final, default=-1)
        survived = [offset for offset, (value, _) in log.items() if final.get(offset) == value]
        # A power loss removes only a tail: if a record survived, all earlier ones must have survived too.
        must_survive = max(survived, default=-1) if era < logs.last_era else max(log, default=-1)
        if era < logs.last_era:
            must_survive = max(must_survive, logs.durable[era].get(place, 0) - 1)
        for offset, (value, source) in sorted(log.items()):
            if offset <= must_survive and final.get(offset) != value:
                found = final.get(offset)
                kind = "unseen" if offset > end else "lost write"
                yield Anomaly(kind, f"{_text(place)} offset {offset}: {value!r} ({source}), at the end {found!r}")
    for call in calls:
        if call.is_ok and call.begun.operation == "send" and call["offset"] is None and call.era == logs.last_era:
            there = {value for _, value in final_read.records.get(call.place, [])}
            for value in call["values"]:
                if value not in there and call["topic"] not in gone:
                    yield Anomaly("lost write", f"{_text(call.place)}: {value!r} was acknowledged and is not there")


def _deleted(call: Call) -> str:
    """Return the deleted topic's name in places: `name/id` if names are reused, to keep the records separate."""
    topic_id = call.begun.value.get("id")
    return str(call["topic"]) if topic_id is None else f"{call['topic']}/{topic_id}"


def _failed(call: Call) -> bool:
    return call.ended is not None and call.ended.kind is Kind.FAIL


def _unordered_sends(calls: Sequence[Call]) -> Iterator[Anomaly]:
    """Yield an anomaly where a producer's records are not in the order in which it sent them."""
    last: dict[tuple[str, Place, int], tuple[int, Any]] = {}
    sends = [call for call in calls if call.is_ok and call.begun.operation == "send" and call["offset"] is not None]
    for call in sorted(sends, key=lambda call: call.begun.number):
        key = (call.begun.process, call.place, call.era)
        before = last.get(key)
        if before is not None and call["offset"] <= before[0]:
            yield Anomaly(
                "non-monotonic send",
                f"{call.begun.process} to {_text(call.place)}: {before[1][0]!r} at {before[0]}, "
                f"then {call['values'][0]!r} at {call['offset']}",
            )
        last[key] = (call["offset"], call["values"])


def _polls(calls: Sequence[Call], logs: Logs) -> Iterator[Anomaly]:
    """Yield an anomaly where a reader skips a record after its position, or gets one before it."""
    positions: dict[tuple[str, Place], int | None] = {}
    for call in calls:
        key = (call.begun.process, call.place) if call.begun.operation in ("seek", "poll") else None
        if key is None or not call.is_ok:
            continue
        if call.begun.operation == "seek":
            positions[key] = call["position"]
            continue
        given = call["position"]
        position = positions.get(key) if given is None else given
        log = logs.at(call.place, call.era)
        for offset, value in call["records"]:
            where = f"{call.begun.process} on {_text(call.place)}"
            if position is not None and offset < position:
                yield Anomaly("non-monotonic poll", f"{where} was at {position} and got {value!r} at {offset}")
            elif position is not None:
                skipped = [missed for missed in range(position, offset) if missed in log]
                if skipped:
                    text = f"{where} was at {position} and got {offset}, past {log[skipped[0]][0]!r} at {skipped[0]}"
                    yield Anomaly("poll skip", text)
            position = offset + 1
        positions[key] = position


def _ends(calls: Sequence[Call]) -> Iterator[Anomaly]:
    """Yield an anomaly where a log end or an out-of-range error contradicts writes acknowledged before the request."""
    ends: dict[tuple[Place, int], list[tuple[int, int]]] = {}  # (event number, lowest possible end), both ascending
    for call in calls:
        if call.is_ok and call.begun.operation == "send" and call["offset"] is not None:
            known_ends = ends.setdefault((call.place, call.era), [])
            end = call["offset"] + len(call["values"])
            assert call.ended is not None
            known_ends.append((call.ended.number, max(end, known_ends[-1][1]) if known_ends else end))
    for call in calls:
        refused = _failed(call) and call.begun.operation == "poll" and call["error"] == "OFFSET_OUT_OF_RANGE"
        is_lookup = call.is_ok and call.begun.operation == "latest"
        if not refused and not is_lookup:
            continue
        at_least = max(
            (end for number, end in ends.get((call.place, call.era), []) if number < call.begun.number), default=0
        )
        if is_lookup and call["offset"] < at_least:
            text = f"{_text(call.place)} was reported to end at {call['offset']}, {at_least} was acknowledged before"
            yield Anomaly("stale end", text)
        if refused and call["position"] is not None and call["position"] <= at_least:
            text = (
                f"{call.begun.process} at {call['position']} of {_text(call.place)}, which ends at {at_least} or later"
            )
            yield Anomaly("position refused", text)


def _producer_ids(calls: Sequence[Call]) -> Iterator[Anomaly]:
    holders: dict[int, str] = {}
    for call in calls:
        if call.is_ok and call.begun.operation == "init_producer_id":
            if call["producer_id"] in holders:
                text = f"{call['producer_id']} to {holders[call['producer_id']]} and to {call.begun.process}"
                yield Anomaly("producer id handed out twice", text)
            holders[call["producer_id"]] = call.begun.process


def _topics(calls: Sequence[Call], final_read: FinalRead) -> Iterator[Anomaly]:
    """Yield an anomaly for each topic whose presence at the end contradicts the last create or delete."""
    if final_read.topics is None:
        return
    last: dict[str, Call] = {}
    uncertain: set[tuple[str, str]] = set()  # requests that may still take effect at any time
    for call in calls:
        operation = call.begun.operation
        if operation in ("create_topic", "delete_topic") and not _failed(call):
            last[call["topic"]] = call
            if not call.is_ok and call.begun.value.get("id") is None:
                uncertain.add((operation, call["topic"]))
    for topic, call in last.items():
        found = final_read.topics.get(topic)
        operation = call.begun.operation
        if not call.is_ok:
            continue
        if operation == "create_topic" and found != call["id"] and ("delete_topic", topic) not in uncertain:
            yield Anomaly("lost topic", f"{topic} was created with id {call['id']}, at the end it is {found}")
        if operation == "delete_topic" and found is not None and ("create_topic", topic) not in uncertain:
            yield Anomaly("deleted topic is back", f"{topic} is there with id {found}")
