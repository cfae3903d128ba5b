"""kafka-python's integration tests, from its source distribution on PyPI.

The distribution lacks two files of the `test` package, which start brokers. A stub is enough, because the broker is
given.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tools.compat.suite import FAILED, PASSED, SKIPPED, Outcomes, Suite, SuiteUnavailable
from tools.prove.registry import WORK, print_progress

VERSION = "3.0.12"
HOME = WORK / "compat" / "kafka-python"
SOURCE = HOME / f"kafka_python-{VERSION}"
PACKAGES = HOME / "packages"
RUN_S_MAX = 1500.0
TEST_S_MAX = 40
FETCH_S_MAX = 300.0
FILES = tuple(f"test_{of}_integration.py" for of in ("admin", "producer", "consumer", "ssl", "sasl"))
STUB = '''"""Stub: the broker is given."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("the broker is given; it is not started by the tests")
'''


def prepare() -> None:
    """Fetch the tests and write the missing files. Raise SuiteUnavailable if that is impossible."""
    if not SOURCE.is_dir():
        HOME.mkdir(parents=True, exist_ok=True)
        _pip(
            "download",
            "--no-deps",
            "--no-binary",
            "kafka-python",
            "-d",
            str(HOME),
            f"kafka-python=={VERSION}",
        )
        with tarfile.open(HOME / f"kafka_python-{VERSION}.tar.gz") as archive:
            archive.extractall(HOME, filter="data")
    (SOURCE / "test" / "__init__.py").touch()
    (SOURCE / "test" / "service.py").write_text(STUB)
    if not (PACKAGES / "pytest_mock").is_dir():
        _pip("install", "--target", str(PACKAGES), "--no-deps", "pytest-mock")


def _pip(*arguments: str) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
            capture_output=True,
            text=True,
            timeout=FETCH_S_MAX,
        )
    except subprocess.TimeoutExpired:
        raise SuiteUnavailable(f"kafka-python's tests could not be fetched within {FETCH_S_MAX:.0f} s") from None
    if done.returncode != 0:
        raise SuiteUnavailable(f"kafka-python's tests could not be fetched: {done.stderr[-400:]}")


def run(bootstrap: str, server: str) -> Outcomes:
    """Run the tests against a server and return their outcomes."""
    report = HOME / f"{server}.xml"
    report.unlink(missing_ok=True)
    print_progress(f"kafka-python's tests against {server}")
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "pytest_mock", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:headrace",
        "-W", "ignore", "--timeout", str(TEST_S_MAX), "--timeout-method=signal", f"--junitxml={report}",
        *(f"test/integration/{file}" for file in FILES),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(SOURCE), str(PACKAGES))),
        "KAFKA_VERSION": "4.0.0",
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_ROOT": str(SOURCE),
    }
    with (HOME / f"{server}.log").open("wb") as log:
        subprocess.run(command, cwd=SOURCE, env=environment, stdout=log, stderr=log, timeout=RUN_S_MAX, check=False)
    return read_report(report)


def read_report(report: Path) -> Outcomes:
    outcomes: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        bad = case.find("failure") is not None or case.find("error") is not None
        outcomes[name] = FAILED if bad else SKIPPED if case.find("skipped") is not None else PASSED
    return outcomes


SUITE = Suite(
    "kafka-python",
    VERSION,
    prepare,
    run,
    {"num.partitions": "4", "auto.create.topics.enable": "true"},
)
