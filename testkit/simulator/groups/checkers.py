"""A checker for groups: reports what a correct coordinator could not have let happen, by the histories of the members.

A partition has one claim at a time. The assignments of one generation are disjoint. An acknowledged commit is seen by every read that
begins later, unless another commit has replaced it; a refused commit is never seen. A power loss that may remove acknowledged commits
(`__consumer_offsets` is not synced before responses) begins a new era: earlier claims no longer count, and reads may find any older
commit, but always the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from testkit.history import POWER_LOSS, Anomaly, Event, History, Kind
from testkit.simulator.groups.members import GIVE, HOLD, TAKE
from testkit.simulator.groups.offsets import UNANSWERED, UNEXPECTED, Place

NOTHING = -1  # result of a read for a partition without a commit
NEVER = 2**62


def check_groups(history: History, is_flushed: bool) -> list[Anomaly]:
    return [*_response_anomalies(history), *_claims(history, is_flushed), *_commits(history, is_flushed)]


def check_commits(history: History, current_from: int) -> list[Anomaly]:
    """Return the anomalies of commits in a cluster, in which nothing acknowledged may be lost.

    A former coordinator that does not know yet that it lost its role may confirm memberships and return offsets that are no
    longer current, as in Kafka. From the event `current_from` on there is none.
    """
    return [*_response_anomalies(history), *_commits(history, is_flushed=True, current_from=current_from)]


def _response_anomalies(history: History) -> Iterator[Anomaly]:
    for event in history.events:
        if event.operation in (UNEXPECTED, UNANSWERED):
            yield Anomaly(event.operation, f"at {event.time:.3f}: {event.value}")


# --- claims


class _Claims(Struct):
    holders: dict[tuple[str, Place], dict[str, float]] = field(default_factory=dict)  # end of each member's claim
    generations: dict[tuple[str, int], dict[Place, str]] = field(default_factory=dict)
    newest: dict[tuple[str, str], int] = field(default_factory=dict)  # last generation by group and identity


def _claims(history: History, is_flushed: bool) -> Iterator[Anomaly]:
    claims = _Claims()
    for event in history.events:
        value = event.value
        if event.operation == POWER_LOSS and not is_flushed:
            claims = _Claims()
        elif event.operation == GIVE:
            for place in value["places"]:
                claims.holders.get((value["group"], place), {}).pop(value["member"], None)
        elif event.operation == HOLD:
            for (group, _), holders in claims.holders.items():
                if group == value["group"] and value["member"] in holders:
                    holders[value["member"]] = value["until"]
        elif event.operation == TAKE:
            yield from _taken(claims, event)
            if value["generation"] is not None:
                yield from _taken_in_generation(claims, event)


def _taken(claims: _Claims, event: Event) -> Iterator[Anomaly]:
    value = event.value
    for place in value["places"]:
        holders = claims.holders.setdefault((value["group"], place), {})
        for other, until in holders.items():
            if other != value["member"] and until > event.time:
                yield Anomaly(
                    "two owners",
                    f"{value['member']} takes {place} of {value['group']} at {event.time:.3f}, "
                    f"which {other} holds until {until:.3f}",
                )
        holders[value["member"]] = value["until"]


def _taken_in_generation(claims: _Claims, event: Event) -> Iterator[Anomaly]:
    value = event.value
    group, generation, identity = value["group"], value["generation"], value["identity"]
    before = claims.newest.get((group, identity), -1)
    if generation < before:
        yield Anomaly("generation went back", f"{value['member']} of {group}: from {before} to {generation}")
    claims.newest[(group, identity)] = generation
    owners = claims.generations.setdefault((group, generation), {})
    for place in value["places"]:
        owner = owners.setdefault(place, identity)
        if owner != identity:
            yield Anomaly("assigned twice", f"{place} in generation {generation} of {group}: {owner} and {identity}")


# --- commits


class _Commit(Struct):
    offset: int
    member: str
    era: int
    begun: int  # number of the event that invoked it
    usurper: str | None  # the member that had taken the partition when the commit was sent, if it was another
    ended: int = NEVER  # number of the event after which it certainly no longer arrives
    seen: int = NEVER  # number of the event after which it certainly was done
    acknowledged: bool = False
    refused: bool = False


class _Read(Struct):
    offset: int
    era: int
    begun: int
    ended: int
    who: str


class _Place(Struct):
    taker: str | None = None  # the last member that took it; None after a power loss that begins a new era
    commits: dict[int, _Commit] = field(default_factory=dict)  # by offset
    reads: list[_Read] = field(default_factory=list)


def _commits(history: History, is_flushed: bool, current_from: int = 0) -> Iterator[Anomaly]:
    for (group, place), known in _gather(history, is_flushed).items():
        for commit in known.commits.values():
            if commit.acknowledged and commit.usurper is not None:
                yield Anomaly(
                    "commit of a former owner",
                    f"{place} of {group}: {commit.offset} of {commit.member}, which {commit.usurper} had taken",
                )
        kept: dict[int, int] = {}  # the offset of an earlier era that each era's reads found
        for read in known.reads:
            where = f"{place} of {group}: {read.who} read {read.offset} (event {read.ended})"
            if text := _judge(known, read, kept, is_current=read.begun >= current_from):
                yield Anomaly("committed offset", f"{where}, {text}")


def _gather(history: History, is_flushed: bool) -> dict[tuple[str, Place], _Place]:
    places: dict[tuple[str, Place], _Place] = {}
    eras: list[int] = []  # era of each event
    era = 0
    for event in history.events:
        if event.operation == POWER_LOSS and not is_flushed:
            era += 1
            for known in places.values():
                known.taker = None
        eras.append(era)
        begun = history.events[event.call].value if event.call < event.number else event.value
        if event.operation == "commit":
            known = places.setdefault((begun["group"], begun["place"]), _Place())
            if event.kind is Kind.INVOKE:
                usurper = None if known.taker == event.process else known.taker
                known.commits[begun["offset"]] = _Commit(begun["offset"], event.process, era, event.number, usurper)
            else:
                _end(known.commits[begun["offset"]], event)
        elif event.operation == "fetch" and event.kind is Kind.OK:
            for topic, index, offset in event.value["offsets"]:
                known = places.setdefault((begun["group"], (topic, index)), _Place())
                known.reads.append(_Read(offset, eras[event.call], event.call, event.number, event.process))
                if (commit := known.commits.get(offset)) is not None:
                    commit.seen = min(commit.seen, event.number)
        elif event.operation == TAKE:
            # The coordinator has removed the previous owner, so its commits in flight can no longer take effect.
            for place in event.value["places"]:
                known = places.setdefault((event.value["group"], place), _Place())
                known.taker = event.value["member"]
                for commit in known.commits.values():
                    if commit.member != event.value["member"]:
                        commit.ended = min(commit.ended, event.number)
    return places


def _end(commit: _Commit, event: Event) -> None:
    if event.kind is Kind.OK:
        commit.ended = min(commit.ended, event.number)
        commit.seen = min(commit.seen, event.number)
        commit.acknowledged = True
    elif event.kind is Kind.FAIL:
        commit.refused = True


def _judge(known: _Place, read: _Read, kept: dict[int, int], *, is_current: bool) -> str | None:
    found: Any = known.commits.get(read.offset)
    if read.offset != NOTHING:
        if found is None or found.begun > read.ended:
            return "which no member had committed"
        if found.refused:
            return "whose commit was refused"
    is_old = found is None or found.era < read.era
    if is_old and read.era > 0 and kept.setdefault(read.era, read.offset) != read.offset:
        return f"and before that {kept[read.era]}, both of before the power loss"
    done = NOTHING if is_old else found.ended
    for commit in known.commits.values():
        if is_current and commit.era == read.era and commit.begun > done and commit.seen < read.begun:
            return f"though {commit.offset} was there since event {commit.seen}"
    return None
