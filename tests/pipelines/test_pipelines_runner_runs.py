"""Registration of runs and their locks, and taking over from drivers that were killed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.base.processes import Process, is_alive, process_of, this_process
from headrace.pipelines.runner.runs import SPARK_ENDS_S_MAX, AlreadyRunning, Run, Runs, local_folder, locked

DEAD = Process(2**22 + 7, "long ago")


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[Any]]:
    """Yield another process, which does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.stdin.close()
    process.wait()


def run_of(driver: Process, pipeline: str = "shop", **more: Any) -> Run:
    return Run(pipeline=pipeline, driver=driver, port=1234, token="secret", started_ms=7, origin="shop.yaml", **more)


def test_a_process_is_identified_by_its_pid_and_start_time(other: subprocess.Popen[Any]) -> None:
    found = process_of(other.pid)
    assert is_alive(found) and is_alive(this_process())
    assert not is_alive(Process(other.pid, "another start")), "the number was given to another"
    other.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(found), "dead, though nobody has noticed yet"
    assert process_of(0) is None and process_of(DEAD.pid) is None


def test_a_claimed_run_is_found_and_only_its_owner_can_read_the_file(runs: Runs, tmp_path: Path) -> None:
    assert runs.all() == []
    mine = run_of(this_process(), spark=this_process(), checkpoint="c")
    runs.claim(mine)
    assert runs.find("shop") == mine and runs.all() == [mine] and mine.is_alive
    (file,) = (tmp_path / "runs").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    runs.release(mine)
    assert runs.all() == []


def test_any_pipeline_name_maps_to_a_file_in_the_runs_folder(runs: Runs, tmp_path: Path) -> None:
    for name in ("a/b", "..", "ä ö", "a.b", "%2e"):
        runs.claim(run_of(this_process(), name))
    assert {run.pipeline for run in runs.all()} == {"a/b", "..", "ä ö", "a.b", "%2e"}
    assert {path.parent for path in tmp_path.rglob("*.json")} == {tmp_path / "runs"}


def test_claiming_a_running_pipeline_is_refused_with_its_process(runs: Runs, other: subprocess.Popen[Any]) -> None:
    runs.claim(run_of(process_of(other.pid)))
    with pytest.raises(AlreadyRunning, match=rf"shop is running already, as process {other.pid}.*pipelines stop shop"):
        runs.claim(run_of(this_process()))
    runs.release(run_of(this_process()))
    assert runs.find("shop").driver.pid == other.pid, "it is not ours to release"


def test_the_run_of_a_killed_driver_can_be_claimed(runs: Runs, other: subprocess.Popen[Any]) -> None:
    runs.claim(run_of(process_of(other.pid)))
    other.kill()
    other.wait()
    assert not runs.find("shop").is_alive
    runs.claim(run_of(this_process()))
    assert runs.find("shop").is_alive


def test_a_claim_waits_for_the_spark_of_a_killed_driver_to_exit(runs: Runs, other: subprocess.Popen[Any]) -> None:
    runs.claim(run_of(DEAD, spark=process_of(other.pid)))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.kill()
            other.wait()

    runs.claim(run_of(this_process()), wait)
    assert len(waits) == 3


def test_a_claim_kills_a_leftover_spark_that_does_not_exit(runs: Runs, other: subprocess.Popen[Any]) -> None:
    runs.claim(run_of(DEAD, spark=process_of(other.pid)))
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) > SPARK_ENDS_S_MAX:
            other.wait(10)

    runs.claim(run_of(this_process()), wait)
    # The process may be gone before the first wait after the signal.
    assert other.wait(10) == -signal.SIGKILL and round(sum(waited)) >= SPARK_ENDS_S_MAX


def test_a_leftover_spark_that_cannot_be_killed_is_reported(
    runs: Runs, other: subprocess.Popen[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.claim(run_of(DEAD, spark=process_of(other.pid)))
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    with pytest.raises(AlreadyRunning, match=f"its Spark still runs, as process {other.pid}"):
        runs.claim(run_of(this_process()), lambda seconds: None)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"driver": 3}', '{"driver": ["x", "y"], "port": 1}', "\x00"])
def test_an_invalid_run_file_is_ignored_and_replaced(runs: Runs, tmp_path: Path, text: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "shop.json").write_text(text)
    assert runs.all() == [] and runs.find("shop") is None
    runs.claim(run_of(this_process()))
    assert json.loads((tmp_path / "runs" / "shop.json").read_text())["port"] == 1234


def test_an_unusable_runs_folder_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be used"):
        Runs(tmp_path).claim(run_of(this_process()))


def test_a_checkpoint_has_one_driver_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    message = rf"checkpoint .*yet of pipeline other is in use by process {os.getpid()}, pipeline shop"
    with (
        locked("shop", str(folder), this_process()),
        pytest.raises(AlreadyRunning, match=message),
        locked("other", f"file://{folder}", this_process()),
    ):
        pass
    with locked("other", str(folder), this_process()):
        pass


def test_a_checkpoint_lock_is_released_when_its_process_is_killed(tmp_path: Path) -> None:
    code = (
        "from headrace.pipelines.runner.runs import locked; from headrace.base.processes import this_process\n"
        f"with locked('shop', {str(tmp_path)!r}, this_process()): print('locked', flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process, ExitStack() as stack:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(AlreadyRunning, match=f"process {process.pid}"):
            stack.enter_context(locked("shop", str(tmp_path), this_process()))
        process.kill()
        process.wait()
        stack.enter_context(locked("shop", str(tmp_path), this_process()))


def test_an_unusable_checkpoint_folder_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = r"checkpoint .* of pipeline shop cannot be used: Not a directory"
    with pytest.raises(ConfigError, match=message), locked("shop", str(tmp_path / "file" / "x"), this_process()):
        pass


def test_only_local_checkpoints_are_locked(tmp_path: Path) -> None:
    assert local_folder("hdfs://name/x") is None and local_folder("s3a://bucket/x") is None
    assert str(local_folder("file:/tmp/a%20b")) == "/tmp/a b" and str(local_folder("x/y")) == "x/y"
    with locked("shop", "s3a://bucket/x", this_process()):
        pass
