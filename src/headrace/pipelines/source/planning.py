"""Decides what the next batch reads and how it is split into tasks. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor
from typing import NamedTuple

from headrace.base.ids import TopicPartition
from headrace.pipelines.source.offsets import StreamOffset

Offsets = dict[TopicPartition, int]


class Range(NamedTuple):
    """Offsets from `start` up to but excluding `end`; transactions and compaction may leave fewer records than offsets."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Layout(NamedTuple):
    """The partitions that exist of the topics that are read."""

    partitions: frozenset[TopicPartition]
    ids: dict[str, str]  # topic ids; empty for a cluster without them

    @property
    def topics(self) -> set[str]:
        return {partition.topic for partition in self.partitions}


class Loss(NamedTuple):
    """Why records that should be read cannot be, and the number of offsets skipped if it is known."""

    what: str
    partition: TopicPartition | None = None
    offsets: int = 0


class Progress(NamedTuple):
    """The offsets at which a batch starts, given the topics that exist now."""

    start: Offsets
    unknown: frozenset[TopicPartition]  # those of topics not seen before: they start at the start of their log
    losses: list[Loss]


def continue_from(before: StreamOffset, layout: Layout) -> Progress:
    """Return where the next batch starts.

    Missing partitions are left out, recreated topics start again, and added partitions start at offset 0.
    """
    losses: list[Loss] = []
    start: Offsets = {}
    anew = {
        topic
        for topic in before.topics & layout.topics
        if topic in before.ids and topic in layout.ids and before.ids[topic] != layout.ids[topic]
    }
    for topic in sorted(anew):
        old, new = before.ids[topic], layout.ids[topic]
        losses.append(Loss(f"topic {topic} was deleted and recreated: its id was {old} and is {new}"))
    gone: dict[str, list[TopicPartition]] = {}
    for partition, offset in before.offsets.items():
        if partition.topic in anew:
            continue
        if partition in layout.partitions:
            start[partition] = offset
        else:
            gone.setdefault(partition.topic, []).append(partition)
    for topic, some in sorted(gone.items()):
        if topic in layout.topics:
            losses.append(Loss(f"{', '.join(map(str, sorted(some)))}: gone, although topic {topic} exists"))
        else:
            read = ", ".join(f"{one} up to offset {before.offsets[one]}" for one in sorted(some))
            losses.append(Loss(f"topic {topic} is gone; {read} had been read"))
    unknown = set()
    for partition in layout.partitions - start.keys():
        if partition.topic in before.topics:
            start[partition] = 0
        else:
            unknown.add(partition)
    return Progress(start, frozenset(unknown), losses)


def gaps(start: Mapping[TopicPartition, int], earliest: Mapping[TopicPartition, int]) -> list[Loss]:
    """Return a loss for each partition whose log starts after the offset to be read next.

    Missing offsets inside a log are not a loss: compaction and transactions leave such gaps.
    """
    return [
        Loss(
            f"{partition}: offset {requested} was to be read, but the log now starts at {earliest[partition]}",
            partition,
            earliest[partition] - requested,
        )
        for partition, requested in sorted(start.items())
        if partition in earliest and earliest[partition] > requested
    ]


def retreats(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions whose log ends before the offset already read."""
    return [
        partition for partition, offset in sorted(start.items()) if partition in latest and latest[partition] < offset
    ]


def limit_offsets(start: Mapping[TopicPartition, int], latest: Offsets, limit: int) -> Offsets:
    """Divide `limit` among the partitions in proportion to their available offsets.

    As in Spark's Kafka source, every partition with new offsets gets at least one.
    """
    sizes = {partition: latest[partition] - start[partition] for partition in latest}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= limit:
        return dict(latest)
    ends: Offsets = {}
    for partition, size in sizes.items():
        if size <= 0:
            ends[partition] = latest[partition]
            continue
        share = limit * size / total
        ends[partition] = min(latest[partition], start[partition] + (ceil(share) if share < 1 else floor(share)))
    return ends


def limit_bytes(
    start: Mapping[TopicPartition, int], latest: Offsets, limit: int, sizes: Mapping[TopicPartition, float]
) -> Offsets:
    """Limit the batch to about `limit` bytes in total, using each partition's mean record size.

    Every partition with new offsets gets at least one.
    """
    total = sum((latest[one] - start[one]) * sizes.get(one, 0.0) for one in latest if latest[one] > start[one])
    if total <= limit:
        return dict(latest)
    share = limit / total
    return {
        partition: end
        if end <= start[partition]
        else min(end, start[partition] + max(1, floor((end - start[partition]) * share)))
        for partition, end in latest.items()
    }


def count_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(max(0, offset - start.get(partition, offset)) for partition, offset in end.items())


def ranges_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
    return [
        Range(partition, start[partition], offset)
        for partition, offset in sorted(end.items())
        if offset > start.get(partition, offset)
    ]


def split_ranges(ranges: Sequence[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """Split ranges into tasks: one per range, which keeps the rows of a partition in order, unless the options require more."""
    if max_records is not None:
        ranges = [piece for one in ranges for piece in _pieces(one, ceil(one.size / max_records))]
    if min_partitions is None or len(ranges) >= min_partitions:
        return list(ranges)
    total = sum(one.size for one in ranges)
    small = [one for one in ranges if _share(one.size, total, min_partitions) == 1]
    rest = total - sum(one.size for one in small)
    tasks_left = max(min_partitions - len(small), 1)
    whole = set(small)
    return [
        piece
        for one in ranges
        for piece in ([one] if one in whole else _pieces(one, _share(one.size, rest, tasks_left)))
    ]


def _share(size: int, total: int, tasks: int) -> int:
    return max(floor(size / total * tasks + 0.5), 1)  # rounds half up, like Java's Math.round


def _pieces(one: Range, count: int) -> Iterable[Range]:
    """Split a range into pieces of nearly equal size, none of them empty."""
    count = min(count, one.size)
    start, left = one.start, one.size
    for index in range(count):
        size = left // (count - index)
        yield Range(one.partition, start, start + size)
        start += size
        left -= size
