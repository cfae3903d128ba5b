"""Subscriptions by regular expression, which the coordinator resolves to topics and records.

All expressions of a group are resolved together, so that a new topic costs one rebalance: when an expression is still unresolved, when
topics were created or deleted, and at regular intervals, but not again within ten seconds. A search runs in slices. It only finds topics
that the member may DESCRIBE; as in Kafka, this is the member whose heartbeat started the search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.patterns import BadPattern, Pattern
from headrace.coordinators.group.consumer.groups import ConsumerGroup, Resolved
from headrace.coordinators.group.consumer.record_values import regex_record
from headrace.metadata.image import Image

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx

REFRESH_MS_MIN = 10_000
SEARCH_BUDGET = 1000  # names per slice, for one small pattern; takes two to four milliseconds
INSTRUCTIONS_PER_NAME = 16  # larger patterns get fewer names per slice, as RE2's speed with them is not known before
COMPILE_COST = 50  # minimum cost of an expression, in names
SLICE_PAUSE_MS = 5  # pause between two slices, so that other work can run
PATTERN_CACHE_SIZE = 100
REGEX_TIMER = "consumer-regex"
UNDER_WAY = ""  # the only key of the table of searches


class Search(Struct, frozen=True):
    names: tuple[str, ...]  # all topics at the start of the search
    left: tuple[str, ...]  # unfinished expressions, the current one first
    position: int  # index of the next name
    matched: tuple[str, ...]  # matches of the current expression so far
    found: tuple[tuple[str, tuple[str, ...]], ...]  # finished expressions with their topics
    allowed: Callable[[str], bool]
    version: int
    began_ms: int


class Patterns:
    """A cache of compiled patterns and of the last change of topic names, which can be rebuilt at any time."""

    def __init__(self) -> None:
        self._compiled: dict[str, Pattern] = {}
        self._topics: Any = None
        self._changed_at = -1

    def get(self, regex: str) -> Pattern:
        pattern = self._compiled.get(regex)
        if pattern is None:
            if len(self._compiled) >= PATTERN_CACHE_SIZE:
                self._compiled.clear()
            pattern = self._compiled[regex] = Pattern(regex)
        return pattern

    def names_changed_at(self, image: Image) -> int:
        """Return the offset of the first image that was seen with the current topic names."""
        if image.topics is not self._topics:
            if self._topics is None or self._topics.keys() != image.topics.keys():
                self._changed_at = image.offset
            self._topics = image.topics
        return self._changed_at


def check_regex(shard: GroupShard, regex: str) -> None:
    try:
        shard.consumers.patterns.get(regex)
    except BadPattern as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from error


def search_if_due(shard: GroupShard, group: ConsumerGroup, received: CoordinatorRequest, now_ms: int, tx: Tx) -> bool:
    """Start a search if one is due; return True if the topics of an expression have changed."""
    if not len(group.regexes) or UNDER_WAY in group.search:
        return False
    resolved = group.resolved.values()
    last_ms = max((one.at_ms for one in resolved), default=None)
    if last_ms is not None and 0 <= now_ms - last_ms <= REFRESH_MS_MIN:
        return False
    image = shard.image()
    is_due = (
        any(regex not in group.resolved for regex, _ in group.regexes.items())
        or last_ms is None
        or max(one.version for one in resolved) < shard.consumers.patterns.names_changed_at(image)
        or now_ms - last_ms > shard.settings.group_consumer_regex_refresh_interval_ms
    )
    if not is_due:
        return False
    group.search[UNDER_WAY] = Search(
        names=tuple(image.topics),
        left=tuple(sorted(regex for regex, _ in group.regexes.items())),
        position=0,
        matched=(),
        found=(),
        allowed=received.allowed,
        version=image.offset,
        began_ms=now_ms,
    )
    return search_slice(shard, group, now_ms, tx)


def search_slice(shard: GroupShard, group: ConsumerGroup, now_ms: int, tx: Tx) -> bool:
    """Search one slice and, after the last one, emit the results; return True if topics have changed."""
    search = _search_slice(group.search[UNDER_WAY], shard.consumers.patterns)
    if search.left:
        group.search[UNDER_WAY] = search
        tx.arm((REGEX_TIMER, group.group_id), now_ms + SLICE_PAUSE_MS)
        return False
    del group.search[UNDER_WAY]
    changed = False
    for regex, topics in search.found:
        if regex not in group.regexes:
            continue  # no member uses it any more
        before = group.resolved.get(regex)
        changed |= (before.topics if before is not None else ()) != topics
        tx.emit(regex_record(group.group_id, regex, Resolved(topics, search.version, search.began_ms)))
    return changed


def _search_slice(search: Search, patterns: Patterns) -> Search:
    budget = SEARCH_BUDGET
    while search.left and budget > 0:
        regex = search.left[0]
        try:
            pattern = patterns.get(regex)
        except BadPattern:  # written by another program or an earlier version; it matches nothing
            search = replace(search, left=search.left[1:], found=(*search.found, (regex, ())))
            budget -= COMPILE_COST
            continue
        weight = max(pattern.size // INSTRUCTIONS_PER_NAME, 1)
        names = search.names[search.position : search.position + max(budget // weight, 1)]
        matched = search.matched + tuple(name for name in names if pattern.matches(name) and search.allowed(name))
        budget -= max(len(names) * weight, COMPILE_COST)
        position = search.position + len(names)
        if position < len(search.names):
            search = replace(search, position=position, matched=matched)
        else:
            done = (*search.found, (regex, tuple(sorted(matched))))
            search = replace(search, left=search.left[1:], position=0, matched=(), found=done)
    return search
