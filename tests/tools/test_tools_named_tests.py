"""The tests that docs/promises.md names exist."""

from __future__ import annotations

import re

from tools.prove.registry import ROOT


def test_every_test_on_the_page_is_one() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/promises.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) > 10 and named <= there
