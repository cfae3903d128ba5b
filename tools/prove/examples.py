"""Runs of the programs in `examples/` as their page describes, with checks of the consumer examples' output."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

from tools.prove.registry import ROOT

EXAMPLES = ROOT / "examples"
RUN_S_MAX = 100.0
RECORDS = 300  # records of kill_a_consumer
KILLS = 3  # kills of exactly_once

_GIVEN = re.compile(r"(\w+) is given partitions \[([\d, ]*)\]")
_KILLED = re.compile(r"ben is killed; his partition (\d) waits")
_OUTCOME = re.compile(r"(\d+) records were read, (\d+) of them twice\n\Z")
_BILLS = re.compile(r"(\d+) bills were written, (\d+) of them were committed\n")
_WORK = re.compile(r"lost: \[([\d, ]*)\], done twice: \[([\d, ]*)\]\n\Z")


def run(example: str, *arguments: str) -> str:
    """Run the example and return its output. Raise AssertionError with its errors if it fails."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    assert done.returncode == 0, f"{example} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


# --- a consumer that is killed


@dataclass
class Takeover:
    orphan: int  # the partition of the killed consumer
    owned: dict[str, set[int]]  # partitions of the two others at the end
    read: int
    twice: int


def kill_a_consumer(bootstrap: str) -> Takeover:
    """Run the example. Raise AssertionError unless the survivors take over all partitions and read every record.

    Before the kill, each of the three must have had one partition.
    """
    output = run("kill_a_consumer.py", bootstrap)
    killed, outcome = _KILLED.search(output), _OUTCOME.search(output)
    assert killed is not None and outcome is not None, output
    before = _owned(output[: killed.start()])
    orphan = int(killed[1])
    assert before["ben"] == {orphan} and sorted(map(sorted, before.values())) == [[0], [1], [2]], output
    owned = _owned(output[killed.end() :])
    shared = sorted(partition for partitions in owned.values() for partition in partitions)
    assert owned.keys() == {"anna", "carla"} and shared == [0, 1, 2], output
    takeover = Takeover(orphan, owned, int(outcome[1]), int(outcome[2]))
    assert takeover.read == RECORDS, output
    return takeover


def _owned(output: str) -> dict[str, set[int]]:
    """Return each consumer's last assignment."""
    return {name: set(_numbers(partitions)) for name, partitions in _GIVEN.findall(output)}


# --- work and commits around a crash


@dataclass
class Work:
    lost: list[int]
    twice: list[int]


def at_least_once(bootstrap: str) -> Work:
    """Run the example. Raise AssertionError unless an order is processed twice and none is lost."""
    work = _work("at_least_once.py", bootstrap)
    assert work.twice and not work.lost, work
    return work


def at_most_once(bootstrap: str) -> Work:
    """Run the example. Raise AssertionError unless an order is lost and none is processed twice."""
    work = _work("at_most_once.py", bootstrap)
    assert work.lost and not work.twice, work
    return work


@dataclass
class Bills:
    written: int
    committed: int


def exactly_once(bootstrap: str) -> Bills:
    """Run the example. Raise AssertionError unless copiers died with bills in the log and each order counts once."""
    output = run("exactly_once.py", bootstrap)
    work, bills = _work_of(output), _BILLS.search(output)
    assert bills is not None and output.count(" is killed with bills ") == KILLS, output
    assert not work.lost and not work.twice, output
    return Bills(int(bills[1]), int(bills[2]))


def _work(example: str, bootstrap: str) -> Work:
    return _work_of(run(example, bootstrap))


def _work_of(output: str) -> Work:
    found = _WORK.search(output)
    assert found is not None, output
    return Work(_numbers(found[1]), _numbers(found[2]))


def _numbers(listed: str) -> list[int]:
    return [int(number) for number in listed.split(",") if number]
