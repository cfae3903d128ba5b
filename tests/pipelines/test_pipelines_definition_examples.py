"""The example pipelines and those in the guide load without warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="needs the extra spark")

from headrace.pipelines.definitions import check, load, plan

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pipelines"


def test_the_examples_load_without_warnings() -> None:
    found = load(EXAMPLES)
    names = ["clean-and-route", "deduplicate", "join-with-a-table", "sessionise", "topic-to-parquet"]
    assert [one.name for one in found] == names and check(found) == []
    assert all(one.origin.parent.name.replace("_", "-") == one.name and plan(one) for one in found)
    assert all(list(one.origin.parent.glob("test_*.py")) for one in found)


def test_the_pipelines_in_the_guide_load_without_warnings(tmp_path: Path) -> None:
    shown = re.findall(
        r"```(yaml|python)\n# (\w+\.\w+)\n(.*?)```", (ROOT / "docs" / "pipelines.md").read_text(), re.DOTALL
    )
    for kind, name, text in shown:
        (tmp_path / f"{kind}-of").mkdir(exist_ok=True)
        (tmp_path / f"{kind}-of" / name).write_text(text)
    for kind, sinks in (("yaml", ["counts", "archive"]), ("python", ["positive", "large"])):
        (found,) = load(tmp_path / f"{kind}-of")
        assert list(found.sinks) == sinks and check([found]) == []
