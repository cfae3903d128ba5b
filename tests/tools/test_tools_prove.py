"""The promises in the docs match the checks in the code, and the runner reports them truthfully."""

from __future__ import annotations

import re

import pytest
import tools.prove.checks  # noqa: F401 (fills the registry)
from tools.prove.__main__ import Outcome, main, plain_table, run
from tools.prove.registry import CHECKS, ROOT, Check, NotRun

LINE = re.compile(r"^\| (?P<promise>.+) \| `(?P<name>[a-z-]+)` \|$", re.MULTILINE)


def test_promises_md_lists_every_check_with_its_promise() -> None:
    page = (ROOT / "docs/promises.md").read_text()
    listed = {found["name"]: found["promise"] for found in LINE.finditer(page)}
    assert listed == {name: check.promise for name, check in CHECKS.items()}


def failing() -> str:
    raise AssertionError("it broke\nin two lines")


def missing() -> str:
    raise NotRun("no JDK")


def test_a_check_is_reported_as_pass_fail_or_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [
        run(Check("good", "works", lambda: "42 things")),
        run(Check("bad", "fails", failing)),
        run(Check("absent", "cannot", missing)),
    ]
    assert [(one.verdict, one.figure) for one in outcomes] == [
        ("PASS", "42 things"),
        ("FAIL", "AssertionError: it broke"),
        ("NOT RUN", "no JDK"),
    ]
    assert "in two lines" in capsys.readouterr().err


def test_the_table_is_aligned() -> None:
    text = plain_table([Outcome("a", "PASS", "one", 1.0), Outcome("longer-name", "NOT RUN", "two", 100.0)])
    header, first, second = text.splitlines()
    assert header.index("verdict") == first.index("PASS") == second.index("NOT RUN")
    assert first.endswith("one") and second.endswith("two")


def test_an_unknown_check_exits_with_2_and_lists_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-check"]) == 2
    assert "kill-nine" in capsys.readouterr().err
