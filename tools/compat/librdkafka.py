"""librdkafka's own tests, from the sources in the npm package node-rdkafka, built here.

Only tests that talk to a broker; unit tests and those with librdkafka's mock broker are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.compat.suite import FAILED, PASSED, SKIPPED, Outcomes, Suite, SuiteUnavailable
from tools.prove.registry import WORK, print_progress

PACKAGE = "node-rdkafka@3.6.1"
VERSION = "2.12"
HOME = WORK / "compat" / "librdkafka"
SOURCE = HOME / "package" / "deps" / "librdkafka"
RUNNER = SOURCE / "tests" / "test-runner"
FETCH_S_MAX = 300.0
BUILD_S_MAX = 1800.0
TEST_S_MAX = 240.0
# By number. The test runner knows which ones are slow; -Q shortens those.
TESTS = (
    "0001", "0002", "0003", "0005", "0007", "0008", "0011", "0012", "0013", "0014", "0015", "0016", "0017", "0020", "0021", "0031",
    "0034", "0035", "0036", "0038", "0039", "0041", "0044", "0048", "0051", "0052", "0053", "0054", "0057", "0059", "0063", "0065",
    "0067", "0070", "0073", "0085", "0086", "0090", "0092", "0110", "0112", "0114", "0123", "0125", "0127", "0055", "0061", "0064",
    "0069", "0079", "0082", "0097", "0101", "0115", "0119", "0126", "0135", "0139", "0142", "0150", "0153",
    # With groups.
    "0018", "0019", "0022", "0026", "0029", "0030", "0033", "0037", "0040", "0042", "0045", "0050", "0056", "0060", "0077", "0081",
    "0083", "0084", "0089", "0091", "0093", "0099", "0102", "0107", "0109", "0111", "0113", "0116", "0118", "0122", "0130", "0132",
    "0137", "0140",
    # With transactions.
    "0098", "0103", "0129",
    # Through a network in the client that delays and drops connections.
    "0049", "0068", "0075", "0076", "0088", "0094",
)  # fmt: skip


def prepare() -> None:
    """Fetch and build the tests. Raise SuiteUnavailable if that is impossible."""
    if os.access(RUNNER, os.X_OK):
        return
    for program in ("npm", "gcc", "g++", "make"):
        if shutil.which(program) is None:
            raise SuiteUnavailable(f"librdkafka's tests need {program}, which is not on the path")
    HOME.mkdir(parents=True, exist_ok=True)
    if not SOURCE.is_dir():
        print_progress("fetching librdkafka's sources")
        _run(("npm", "pack", "--silent", PACKAGE), HOME, FETCH_S_MAX)
        archive = next(HOME.glob("node-rdkafka-*.tgz"))
        _run(("tar", "xzf", archive.name), HOME, FETCH_S_MAX)
    print_progress("building librdkafka and its tests, which takes some minutes")
    for command in (("./configure",), ("make", "libs"), ("make", "-C", "tests", "build")):
        _run(command, SOURCE, BUILD_S_MAX)


def _run(command: Sequence[str], where: Path, seconds: float) -> None:
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, errors="replace", timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SuiteUnavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise SuiteUnavailable(
            f"{' '.join(command)} exited with {done.returncode}: {(done.stdout + done.stderr)[-400:]}"
        )


def run(bootstrap: str, server: str) -> Outcomes:
    """Run the tests against a server and return their outcomes."""
    configuration = HOME / f"{server}.conf"
    configuration.write_text(f"metadata.broker.list={bootstrap}\ntest.timeout.multiplier=3\n")
    outcomes: Outcomes = {}
    for number in TESTS:
        print_progress(f"librdkafka's test {number} against {server}")
        outcomes[number] = _outcome(number, configuration, HOME / f"{server}-{number}.log")
    return outcomes


def _outcome(number: str, configuration: Path, log: Path) -> str:
    environment = {
        **os.environ,
        "TESTS": number,
        "RDKAFKA_TEST_CONF": str(configuration),
        "LD_LIBRARY_PATH": f"{SOURCE / 'src'}:{SOURCE / 'src-cpp'}",
    }
    command = ("./test-runner", "-Q", "-p1", "-L", "-V", "4.0.0")
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command, cwd=RUNNER.parent, env=environment, stdout=output, stderr=output, timeout=TEST_S_MAX
            )
        except subprocess.TimeoutExpired:
            return FAILED
    if done.returncode != 0:
        return FAILED
    # One line for each test with this number; tests that the runner skips here do not count.
    return PASSED if re.search(rf"\| *\S* *{number}_.*PASSED", log.read_text(errors="replace")) else SKIPPED


SUITE = Suite(
    "librdkafka",
    VERSION,
    prepare,
    run,
    {"num.partitions": "4", "auto.create.topics.enable": "true"},
)
