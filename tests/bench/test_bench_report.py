"""The report: medians, ratios, goals, and the page, of which only the marked part changes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from bench.errors import BenchFailed
from bench.line import Line, Measurement
from bench.lines import all_lines
from bench.plot import draw
from bench.publish import BEGIN, END, Run, write_json, write_page
from bench.report import Row, make_rows, markdown_table, verdict
from bench.runner import Results
from bench.systems.loop_lag import quantile
from bench.systems.servers import CEILING, HEADRACE, KAFKA

SAMPLES = {HEADRACE: (1000.0, 3000.0, 1100.0), KAFKA: (500.0, 400.0, 600.0), CEILING: (1500.0, 2000.0, 1600.0)}


def some_lines() -> list[Line]:
    lines = all_lines()
    return [lines["produce-64k"], lines["loop"]]


def results() -> Results:
    made = Results()
    for name, rounds in SAMPLES.items():
        for value in rounds:
            made.add("produce-64k", name, Measurement({"mb_per_s": value, "cpu_s_per_gb": value / 1000}))
    lags = {"lag_p999_ms": 25.0, "filled_mb_per_s": 900.0, "message_p999_ms": 3.0, "create_s": 20.0}
    made.add("loop", HEADRACE, Measurement(lags))
    return made


def rows() -> list[Row]:
    return make_rows(some_lines(), results())


def test_ratios_use_medians_and_are_judged_by_their_goals() -> None:
    found = {(row.figure.key, row.against): (row.ratio, row.met) for row in rows()}
    assert found["mb_per_s", KAFKA] == (1100.0 / 500.0, True)
    assert found["mb_per_s", CEILING] == (1100.0 / 1600.0, False)
    assert found["cpu_s_per_gb", KAFKA] == (2.2, False)
    assert ("cpu_s_per_gb", CEILING) not in found
    assert found["lag_p999_ms", ""] == (None, True)
    assert found["create_s", ""] == (None, None)


def test_the_verdict_lists_the_missed_goals() -> None:
    text = verdict(rows())
    assert text.startswith("2 of 4 goals met; missed: ")
    assert "produce-64k CPU s/GB against Kafka" in text


def test_rows_without_a_kafka_measurement_have_no_ratio() -> None:
    only_ours = Results({"produce-64k": {HEADRACE: results().rounds["produce-64k"][HEADRACE]}})
    assert [(row.ratio, row.met) for row in make_rows(some_lines(), only_ours)] == [(None, None), (None, None)]


def test_a_baseline_of_zero_yields_no_ratio() -> None:
    row = Row("idle-1000", "idle", all_lines()["idle-1000"].figures[0], 3.0, KAFKA, 0.0, 1.0)
    assert (row.ratio, row.met) == (None, None)
    assert row.cells()[4:] == ("0.0", "–", "≤ 1 ×", "–")


def test_only_the_marked_part_of_the_page_changes(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    begin, end = (text.format(chapter="broker") for text in (BEGIN, END))
    other = f"{BEGIN}\nother\n{END}\n".format(chapter="transactions")
    page.write_text(f"# Above\n{begin}\nold\n{end}\n## Below\n{other}")
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    run = Run(when, "python -m bench", {"cores": "2"}, {"rounds": "3"}, results(), rows())
    write_page(run, "broker", page)
    text = page.read_text()
    assert text.startswith(f"# Above\n{begin}\n")
    assert text.endswith(f"{end}\n## Below\n{other}")
    assert "old" not in text
    assert markdown_table(rows()) in text
    assert write_json(run, tmp_path).name == "20260102T030405Z.json"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="needs the markers"):
        write_page(run, "broker", page)


def test_a_quantile_of_buckets_is_an_upper_bound() -> None:
    cumulative = {0.01: 990.0, 0.05: 998.0, 0.1: 999.0, float("inf"): 1000.0}
    assert quantile(cumulative, 0.5) == 0.01
    assert quantile(cumulative, 0.999) == 0.1
    with pytest.raises(BenchFailed, match="not measured any lag"):
        quantile({}, 0.5)


@pytest.mark.parametrize("row_count", [0, 3])
def test_the_plot_is_drawn_for_any_number_of_rows(tmp_path: Path, row_count: int) -> None:
    path = tmp_path / "performance.png"
    draw(rows()[:row_count], path)
    assert path.read_bytes().startswith(b"\x89PNG")
