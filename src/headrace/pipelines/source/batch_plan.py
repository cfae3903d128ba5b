"""Plans a batch read: resolves its bounds to offsets and narrows them by the pushed filters."""

from __future__ import annotations

from typing import NamedTuple

from headrace.pipelines.failures import SourceError
from headrace.pipelines.source.bounds import BoundKind
from headrace.pipelines.source.brokers import Brokers
from headrace.pipelines.source.options import SourceOptions
from headrace.pipelines.source.planning import Layout, Loss, Offsets, Range, gaps, retreats, split_ranges
from headrace.pipelines.source.pushed_filters import Pushed
from headrace.pipelines.source.tracking import beyond, report_losses


class BatchPlan(NamedTuple):
    ranges: list[Range]
    ids: dict[str, str]


async def plan_batch(brokers: Brokers, options: SourceOptions, pushed: Pushed) -> BatchPlan:
    layout = await brokers.named_layout()
    start = await brokers.resolve(options.starting, layout)
    end = await brokers.resolve(options.ending, layout)
    start, end = await _within(brokers, options, layout, start, end)
    for partition, low in sorted(start.items()):
        if low > end[partition]:
            bounds = f"{options.starting.option} is offset {low}, {options.ending.option} is {end[partition]}"
            raise SourceError(f"{partition}: the read would end before it begins: {bounds}")
    partitions = [one for one in sorted(layout.partitions) if pushed.includes(one)]
    if pushed.since_ms is not None:
        since = await brokers.since(partitions, max(0, pushed.since_ms))
        start |= {one: max(start[one], since[one]) for one in partitions}
    ranges = [pushed.cut(Range(one, start[one], end[one])) for one in partitions]
    ranges = [one for one in ranges if one.size > 0]
    return BatchPlan(split_ranges(ranges, options.min_partitions, options.max_records), layout.ids)


async def _within(
    brokers: Brokers, options: SourceOptions, layout: Layout, start: Offsets, end: Offsets
) -> tuple[Offsets, Offsets]:
    """Clamp bounds that were given as offsets to the offsets that the logs hold, and report what is lost."""
    losses: list[Loss] = []
    if options.starting.kind is BoundKind.OFFSETS:
        earliest = await brokers.earliest(layout.partitions)
        losses += gaps(start, earliest)
        start = {one: max(offset, earliest[one]) for one, offset in start.items()}
    if BoundKind.OFFSETS in (options.starting.kind, options.ending.kind):
        latest = await brokers.latest(layout.partitions)
        for option, bound in ((options.starting.option, start), (options.ending.option, end)):
            losses += [beyond(option, one, bound[one], latest[one]) for one in retreats(bound, latest)]
        start = {one: min(offset, latest[one]) for one, offset in start.items()}
        end = {one: max(start[one], min(offset, latest[one])) for one, offset in end.items()}
    report_losses(losses, options.fail_on_data_loss)
    return start, end
