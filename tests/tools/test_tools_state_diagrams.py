"""docs/state-machines.md is what the generator writes, and its diagrams have every transition of the tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tools.state_diagrams import DOCUMENT, camel_case, document, machines, main, words

from headrace.coordinators.group.classic import states as classic
from headrace.coordinators.group.consumer import reconciliation
from headrace.coordinators.transaction import states as transaction
from headrace.raft import roles as raft

# The transitions of each table as source, target and event, read here independently of the generator.
TABLES = {
    "Classic group": {
        (source.value, target.value, words(event)) for (source, event), target in classic.TRANSITIONS.items()
    },
    "Member of a consumer group": {
        (camel_case(source), camel_case(step.state), words(finding))
        for (source, finding), step in reconciliation.TRANSITIONS.items()
    },
    "Transaction": {
        (source.text, target.text, "") for target, sources in transaction.BEFORE.items() for source in sources
    },
    "Voter of the metadata quorum": {
        (source.value, target.value, "") for source, targets in raft.TRANSITIONS.items() for target in targets
    },
}


def section(title: str) -> str:
    return DOCUMENT.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_document_matches_the_generator_output() -> None:
    assert DOCUMENT.read_text() == document(), "run `make docs`"


def test_every_state_machine_has_a_table_to_compare_with() -> None:
    assert [machine.title for machine in machines()] == list(TABLES)


@pytest.mark.parametrize("title", TABLES)
def test_a_diagram_has_exactly_the_transitions_of_its_table(title: str) -> None:
    (source,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", section(title), re.S)
    drawn = [re.fullmatch(r" +(\S+) --> (\S+)(?: : (.+))?", line) for line in source.splitlines()]
    arrows = {
        (arrow[1], arrow[2], event) for arrow in drawn if arrow and arrow[1] != "[*]" for event in split(arrow[3])
    }
    assert all(drawn)
    assert arrows == TABLES[title]


@pytest.mark.parametrize("title", TABLES)
def test_the_rows_below_a_diagram_list_the_same_transitions(title: str) -> None:
    has_events = any(event for _, _, event in TABLES[title])
    _, _, *rows = [line.strip("| ").split(" | ") for line in section(title).splitlines() if line.startswith("|")]
    listed = [(source, row[1], row[2] if has_events else "") for row in rows for source in split(row[0])]
    assert sorted(listed) == sorted(TABLES[title])


def test_check_fails_if_the_document_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stale = tmp_path / "docs" / "state-machines.md"
    stale.parent.mkdir()
    monkeypatch.setattr("tools.state_diagrams.ROOT", tmp_path)
    monkeypatch.setattr("tools.state_diagrams.DOCUMENT", stale)
    monkeypatch.setattr(sys, "argv", ["state_diagrams", "--check"])
    assert main() == 1 and not stale.exists()
    stale.write_text(document().replace("Empty", "Full"))
    assert main() == 1
    stale.write_text(document())
    assert main() == 0


def split(names: str | None) -> list[str]:
    return (names or "").split(", ")
