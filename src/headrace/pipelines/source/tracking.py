"""Determines the offsets of each batch of a stream from those of the previous one, even if the topics have changed since."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from headrace.base.ids import TopicPartition
from headrace.client.retry import Retry
from headrace.pipelines.failures import DataLoss
from headrace.pipelines.source.bounds import BoundKind
from headrace.pipelines.source.brokers import STALE_POLICY, STALE_S_MAX, Brokers, Stale
from headrace.pipelines.source.offsets import StreamOffset
from headrace.pipelines.source.options import SourceOptions
from headrace.pipelines.source.planning import (
    Layout,
    Loss,
    Offsets,
    Progress,
    Range,
    continue_from,
    count_between,
    gaps,
    limit_bytes,
    limit_offsets,
    ranges_between,
    retreats,
)

SIZES_S_MAX = 30.0  # maximum age of the mean record sizes

_LOG = logging.getLogger("headrace.spark")


class Tracker:
    """Tracks one query's source on the driver. No state need survive: a restarted query takes its offsets from the checkpoint."""

    def __init__(self, options: SourceOptions, brokers: Brokers, now: Callable[[], float] = monotonic) -> None:
        self._options = options
        self._brokers = brokers
        self._now = now
        self._target: Offsets | None = None  # where reading ends with Trigger.AvailableNow; None: never
        self._batch_at: float | None = None
        self._sizes: tuple[float, dict[TopicPartition, float]] | None = None
        self.latest: StreamOffset | None = None  # end offsets of the logs when last read

    async def initial(self) -> StreamOffset:
        layout = await self._brokers.named_layout()
        starting = self._options.starting
        offsets = await self._brokers.resolve(starting, layout)
        if starting.kind is BoundKind.OFFSETS:
            losses = gaps(offsets, await self._brokers.earliest(layout.partitions))
            latest = await self._brokers.latest(layout.partitions)
            losses += [beyond(starting.option, one, offsets[one], latest[one]) for one in retreats(offsets, latest)]
            self._report_losses(losses)
            offsets = {
                one: min(max(offset, offset + _count(losses, one)), latest[one]) for one, offset in offsets.items()
            }
        return StreamOffset(offsets, layout.ids)

    async def freeze(self) -> None:
        """Limit the stream to the records that exist now."""
        layout = await self._brokers.named_layout()
        self._target = await self._brokers.latest(layout.partitions)

    async def next(self, before: StreamOffset, *, limited: bool, wait_ms: int = 0) -> StreamOffset | None:
        """Return where the next batch ends, or None if there is nothing to read even after waiting up to `wait_ms`."""
        found = await self._look(before, limited)
        if found is None and wait_ms > 0 and self._target is None:
            positions = {one: offset for one, offset in before.offsets.items() if self._is_read_up(one, offset)}
            await self._brokers.wait_for_more(positions, wait_ms)
            found = await self._look(before, limited)
        if found is not None:
            self._batch_at = self._now()
        return found

    async def ranges(self, before: StreamOffset, end: StreamOffset) -> list[Range]:
        """Return the ranges of a batch, the same on every call, so that it can be read again.

        Partitions of topics that are new in this batch start at the current start of their log.
        """
        then = Layout(frozenset(end.offsets), end.ids)
        progress = continue_from(before, then)
        start = progress.start | await self._brokers.earliest(progress.unknown)
        passed = {one: end.lost.get(one, 0) - before.lost.get(one, 0) for one in start}
        return ranges_between({one: offset + passed[one] for one, offset in start.items()}, end.offsets)

    async def _look(self, before: StreamOffset, limited: bool) -> StreamOffset | None:
        layout, progress = await self._progress(before)
        start = progress.start | await self._brokers.earliest(progress.unknown)
        latest, losses = await self._latest(start, layout)
        self.latest = StreamOffset(latest, layout.ids)
        if self._target is not None:
            latest = {one: min(offset, self._target[one]) for one, offset in latest.items() if one in self._target}
        new = {one: start[one] for one, offset in latest.items() if offset > start[one]}
        losses += gaps(new, await self._brokers.earliest(new))
        losses += progress.losses
        self._report_losses(losses)
        lost = dict(before.lost)
        for loss in losses:
            if loss.partition is not None and loss.offsets:
                lost[loss.partition] = lost.get(loss.partition, 0) + loss.offsets
                start[loss.partition] += loss.offsets
        # A log may now start after what was its end a moment ago.
        latest = {one: max(offset, start[one]) if one in new else offset for one, offset in latest.items()}
        if limited and not losses:
            if self._is_too_little(start, latest):
                return None
            latest = await self._limit(start, latest)
        end = StreamOffset(latest, layout.ids, lost)
        return None if end.offsets == before.offsets and not losses else end

    async def _progress(self, before: StreamOffset) -> tuple[Layout, Progress]:
        """Return the layout and progress. Losses are believed only if they last, because metadata may be outdated."""
        retry = Retry(STALE_POLICY, STALE_S_MAX, now=self._now)
        while True:
            layout = await self._brokers.named_layout(but=before.topics)
            progress = continue_from(before, layout)
            if not progress.losses or not await pause_if_early(retry):
                return layout, progress

    async def _latest(self, start: Offsets, layout: Layout) -> tuple[Offsets, list[Loss]]:
        """Return the end offsets. One before `start` is believed only if it lasts: a new leader may not know it yet."""
        retry = Retry(STALE_POLICY, STALE_S_MAX, now=self._now)
        while True:
            latest = await self._brokers.latest(layout.partitions)
            back = retreats(start, latest)
            if not back or not await pause_if_early(retry):
                return latest, [
                    Loss(f"{one}: it was read up to offset {start[one]}, but ends at {latest[one]} now") for one in back
                ]

    def _is_too_little(self, start: Offsets, latest: Offsets) -> bool:
        minimum = self._options.min_offsets
        if minimum is None or self._target is not None or self._batch_at is None:
            return False
        return count_between(start, latest) < minimum and self._now() < self._batch_at + self._options.max_delay_s

    def _is_read_up(self, one: TopicPartition, offset: int) -> bool:
        """Return whether all known records were read; a partition with records left over would end the wait at once."""
        return self.latest is not None and self.latest.offsets.get(one) == offset

    async def _limit(self, start: Offsets, latest: Offsets) -> Offsets:
        options = self._options
        if options.max_bytes is not None:
            if self._sizes is None or self._now() > self._sizes[0] + SIZES_S_MAX:
                self._sizes = self._now(), await self._brokers.record_sizes(latest)
            latest = limit_bytes(start, latest, options.max_bytes, self._sizes[1])
        if options.max_offsets is not None:
            latest = limit_offsets(start, latest, options.max_offsets)
        return latest

    def _report_losses(self, losses: list[Loss]) -> None:
        report_losses(losses, self._options.fail_on_data_loss)


async def pause_if_early(retry: Retry) -> bool:
    """Pause and return True, or return False if the deadline comes first."""
    try:
        await retry.pause(Stale())
    except Stale:
        return False
    return True


def report_losses(losses: list[Loss], fail: bool) -> None:
    """Report losses, never silently: raise DataLoss, or log a warning for each."""
    if losses and fail:
        what = "; ".join(loss.what for loss in losses)
        raise DataLoss(f"{what} (with failOnDataLoss=false the query continues with the records that exist)")
    for loss in losses:
        count = f": {loss.offsets} offsets are skipped" if loss.offsets else ""
        _LOG.warning("records were lost; the query continues because failOnDataLoss is false: %s%s", loss.what, count)


def beyond(option: str, partition: TopicPartition, requested: int, latest: int) -> Loss:
    return Loss(f"{option} of {partition} is {requested}, but it ends at {latest}")


def _count(losses: list[Loss], partition: TopicPartition) -> int:
    return sum(loss.offsets for loss in losses if loss.partition == partition)
