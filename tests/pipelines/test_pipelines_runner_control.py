"""Controlling a driver over HTTP on loopback."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.base.processes import this_process
from headrace.pipelines.runner.bars import Lines, how_far, line_of, watching
from headrace.pipelines.runner.control import Control, NoResponse, ask_status, ask_to_stop
from headrace.pipelines.runner.runs import Run
from headrace.pipelines.runner.status import QueryStatus, from_json, to_json

STATUS = QueryStatus(
    name="counts",
    pipeline="shop",
    state="running",
    rows_per_s=1234.5,
    lag_records=17,
    lag_ms=2500,
    state_rows=5,
    state_bytes=4096,
    batches=3,
    rows=99,
    restarts=1,
    error="there is\nno topic",
)
OTHER = QueryStatus(name="x", pipeline="other", state="waiting")


@pytest.fixture
def stops() -> list[Any]:
    return []


@pytest.fixture
def control(stops: list[Any]) -> Iterator[Control]:
    control = Control(lambda: [STATUS, OTHER], stops.append, "a-token")
    yield control
    control.close()


def run_at(control: Control, pipeline: str = "shop", token: str = "a-token") -> Run:
    return Run(pipeline=pipeline, driver=this_process(), port=control.port, token=token)


def answer(control: Control, method: str, path: str, **headers: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=10)
    connection.request(method, path, headers=headers)
    found = connection.getresponse()
    body = found.read().decode()
    connection.close()
    return found.status, body


def test_status_is_unchanged_after_a_round_trip_over_http(control: Control) -> None:
    assert ask_status(run_at(control)) == [STATUS]
    assert from_json(to_json(STATUS)) == STATUS
    assert from_json({"name": "n", "new": 1}).name == "n", "of a newer driver"


def test_a_stop_request_stops_the_named_pipeline_or_all(control: Control, stops: list[Any]) -> None:
    ask_to_stop(run_at(control, "a b&c"))
    assert stops == [["a b&c"]]
    assert answer(control, "POST", "/stop", Authorization="Bearer a-token")[0] == 202
    assert stops[1:] == [None]


def test_only_metrics_are_served_without_the_token(control: Control, stops: list[Any]) -> None:
    for token in ("", "a-toke", "ä"):
        with pytest.raises(NoResponse, match="token"):
            ask_status(run_at(control, token=token.encode().decode("latin-1")))
        assert answer(control, "POST", "/stop", Authorization=f"Basic {token}".encode())[0] == 401
    assert stops == []
    status, text = answer(control, "GET", "/metrics")
    assert status == 200
    assert 'headrace_pipeline_lag_seconds{pipeline="shop",query="counts"} 2.5' in text
    assert 'headrace_pipeline_rows_total{pipeline="shop",query="counts"} 99.0' in text
    assert 'headrace_pipeline_state{pipeline="shop",query="counts",state="running"} 1.0' in text
    assert 'headrace_pipeline_lag_seconds{pipeline="other"' not in text, "nobody knows it yet"


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("POST", "/status", 404), ("PUT", "/stop", 501)]
)
def test_unknown_paths_and_methods_are_refused(control: Control, method: str, path: str, status: int) -> None:
    assert answer(control, method, path, Authorization="Bearer a-token")[0] == status


def test_malformed_requests_do_not_stop_the_server(control: Control) -> None:
    for rubbish in (
        b"",
        b"\x00\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /status HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ):
        with socket.create_connection(("127.0.0.1", control.port), timeout=10) as wire:
            wire.sendall(rubbish)
            wire.shutdown(socket.SHUT_WR)
            while wire.recv(4096):
                pass
    assert ask_status(run_at(control)) == [STATUS]


def test_a_port_in_use_raises_config_error(control: Control) -> None:
    with pytest.raises(ConfigError, match=f"port {control.port}"):
        Control(list, lambda names: None, "", control.port)


def test_an_unreachable_driver_is_reported(control: Control) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        run = Run(pipeline="shop", driver=this_process(), port=free.getsockname()[1])
        with pytest.raises(NoResponse, match="does not respond"):
            ask_status(run)


# --- progress as shown to users


def test_progress_is_shown_as_rows_of_the_known_total() -> None:
    def bounded(**more: Any) -> QueryStatus:
        return QueryStatus(name="counts", pipeline="shop", is_bounded=True, **more)

    assert how_far(bounded(state="starting")) == (0, None)
    assert how_far(bounded(state="running", rows=40, lag_records=60)) == (40, 100)
    assert how_far(bounded(state="done", rows=100, lag_records=60)) == (100, 100)
    assert line_of(bounded(state="done")) == "shop.counts: done", "of what is no stream nobody counts rows"
    assert line_of(bounded(state="running", batches=2, rows=40_000, lag_records=60_000, rows_per_s=1234.5)) == (
        "shop.counts: running, 40,000 of 100,000 rows, 1,234 rows/s"
    )
    assert line_of(STATUS) == "shop.counts: running, 99 rows, 1,234 rows/s, 17 behind (2.5 s), there is no topic"


def test_progress_lines_are_limited_in_rate_and_need_new_rows() -> None:
    now = [0.0]
    printed: list[str] = []
    lines = Lines(5.0, lambda: now[0], printed.append)
    lines([STATUS])
    assert printed == []
    now[0] = 5.0
    lines([STATUS, OTHER])
    lines([STATUS, OTHER])
    assert [line.split(":")[0] for line in printed] == ["shop.counts", "other.x"]
    now[0] = 60.0
    lines([STATUS, OTHER])
    assert len(printed) == 2


def test_progress_bars_are_drawn_on_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(True, is_terminal=True) as watch:
        counts = QueryStatus(name="counts", pipeline="shop", state="running", is_bounded=True, batches=1, rows=40)
        watch([counts])
        watch([replace(counts, lag_records=60)])
        watch([replace(counts, state="done", rows=100)])
    assert "shop.counts" in (drawn := capsys.readouterr().err) and "100%" in drawn and "done, 100 rows" in drawn
