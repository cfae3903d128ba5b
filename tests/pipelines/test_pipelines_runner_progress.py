"""Turning recorded progress events of Spark into rows, rates and lags."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipelines.runner.progress import HEADS_MAX, Batch, Heads, Meter, SourceProgress, read_progress

# One event of PySpark 4.3, shortened; offsets are text unless they are JSON in Spark's own format.
RECORDED = {
    "id": "505bb49e-9fd3-4ef6-a68d-963524574e87",
    "runId": "88197e78-2261-445a-a351-f99f6fae27a0",
    "name": "shop.counts",
    "timestamp": "2026-11-16T18:12:31.337Z",
    "batchId": 1,
    "batchDuration": 2748,
    "numInputRows": 19,
    "inputRowsPerSecond": 0.9,
    "processedRowsPerSecond": 6.9,
    "durationMs": {"addBatch": 2401, "commitOffsets": 145, "triggerExecution": 2740, "walCommit": 63},
    "eventTime": {"max": "1970-01-01T00:00:01.023Z", "watermark": "1970-01-01T00:00:00.011Z"},
    "stateOperators": [
        {
            "operatorName": "stateStoreSave",
            "numRowsTotal": 24,
            "memoryUsedBytes": 13760,
            "customMetrics": {"rocksdbSstFileSize": 5606, "rocksdbPutCount": 17},
        },
        {"operatorName": "dedupe", "numRowsTotal": 6, "memoryUsedBytes": 40},
    ],
    "sources": [
        {
            "description": "PythonMicroBatchStream",
            "startOffset": {"t": {"0": 12, "1": 7}, "#ids": {"t": "mbxys_0hR1m7FfJOu7QEpg"}},
            "endOffset": {"t": {"0": 24, "1": 14}, "#ids": {"t": "mbxys_0hR1m7FfJOu7QEpg"}},
            "latestOffset": {"t": {"0": 50, "1": 30}, "#ids": {"t": "mbxys_0hR1m7FfJOu7QEpg"}},
            "numInputRows": 19,
        },
        {"description": "FileStreamSource", "endOffset": {"logOffset": 3}, "latestOffset": None},
    ],
    "sink": {"description": "PythonTable", "numOutputRows": 4},
}


def test_a_recorded_progress_event_is_parsed() -> None:
    assert read_progress(RECORDED) == Batch(
        number=1,
        began_ms=1_794_852_751_337,
        duration_ms=2740,
        rows=19,
        rows_out=4,
        sources=(SourceProgress(("t",), 38, 80), None),
        state_rows=30,
        state_bytes=13760 + 5606 + 40,
        watermark_ms=11,
    )


def test_text_offsets_new_partitions_and_deleted_topics_are_parsed() -> None:
    event = {"sources": [{"endOffset": '{"t":{"0":5},"gone":{"0":7}}', "latestOffset": '{"t":{"0":9,"1":3}}'}]}
    (source,) = read_progress(event).sources
    assert (source.topics, source.lag) == (("gone", "t"), 7)
    without_latest = read_progress(
        {"sources": [{"endOffset": {"t": {"0": 5}}, "latestOffset": None}], "sink": {"numOutputRows": -1}}
    )
    assert without_latest.sources[0].lag == 0 and without_latest.rows_out is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_progress_event_is_accepted(data: st.DataObject) -> None:
    event = {name: data.draw(json_values, label=name) for name in RECORDED}
    meter = Meter()
    meter.add(read_progress(event), 10**12)
    meter.rows_per_s(10**12), meter.lag_ms(10**12), meter.lag_records


def batch(
    at_ms: int, rows: int = 100, *, read: int | None = None, head: int | None = None, took_ms: int = 100
) -> Batch:
    sources = () if read is None else (SourceProgress(("t",), read, read if head is None else head),)
    return Batch(0, at_ms, took_ms, rows, rows // 2, sources, 0, 0, None)


def test_rates_cover_the_last_ten_seconds_and_fall_without_input() -> None:
    meter = Meter()
    assert meter.rows_per_s(0) == 0 and meter.rows_out_per_s(0) is None
    for second in range(1, 31):
        meter.add(batch(second * 1000, 100 if second <= 15 else 300), second * 1000 + 500)
    assert meter.rows == 15 * 100 + 15 * 300 and meter.rows_out == meter.rows // 2
    assert meter.rows_per_s(31_000) == pytest.approx(300, rel=0.05)
    assert meter.rows_out_per_s(31_000) == pytest.approx(150, rel=0.05)
    assert meter.rows_per_s(130_000) < 40
    meter.add(batch(130_000, 0), 130_500)
    assert meter.rows_per_s(140_000) < 40


def test_lag_is_measured_in_records_and_in_time() -> None:
    meter = Meter()
    assert (meter.lag_records, meter.lag_ms(0)) == (None, None)
    # A hundred records per second are written, forty are read.
    for second in range(11):
        meter.add(batch(second * 1000, 40, read=40 * second, head=100 * second), second * 1000 + 100)
    assert meter.lag_records == 600
    # Record 400 was written when the topic ended there, at four seconds.
    assert meter.lag_ms(10_000) == 6000
    assert meter.lag_ms(15_000) == 11_000, "it grows while nothing is read"
    meter.add(batch(11_000, 700, read=1100), 12_000)
    assert (meter.lag_records, meter.lag_ms(60_000)) == (0, 0)


def test_the_age_of_records_is_counted_from_their_first_observation() -> None:
    heads = Heads()
    heads.add(1000, 500)
    assert heads.behind_ms(0, 5000) == 4000
    heads.add(9000, 100)
    assert heads.behind_ms(50, 9500) == 500, "another topic by the same name"
    assert heads.behind_ms(100, 9500) == 0


def test_idle_periods_do_not_increase_the_age_of_new_records() -> None:
    heads = Heads()
    for second in range(100):
        heads.add(second * 1000, 10)
    heads.add(100_000, 20)
    assert heads.behind_ms(10, 100_500) == 1500


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 50)), min_size=1, max_size=3 * HEADS_MAX), st.data())
def test_age_is_bounded_by_elapsed_time_and_falls_as_more_is_read(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    heads, now_ms, head = Heads(), 0, 0
    for passed_ms, arrived in steps:
        now_ms, head = now_ms + passed_ms, head + arrived
        heads.add(now_ms, head)
    assert len(heads._seen) <= HEADS_MAX
    reads = sorted(data.draw(st.lists(st.integers(0, head), min_size=2, max_size=6)))
    ages = [heads.behind_ms(read, now_ms) for read in reads]
    assert ages == sorted(ages, reverse=True) and ages[-1] >= 0 and ages[0] <= now_ms
    assert heads.behind_ms(head, now_ms) == 0
