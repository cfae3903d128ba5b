"""The tests that docs/promises.md names exist."""

from __future__ import annotations

import re

from tools.prove.registry import ROOT


def test_every_test_named_in_promises_md_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/promises.md").read_text()))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) > 10 and named <= defined
