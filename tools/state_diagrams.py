"""State diagrams for the documentation, generated from the transition tables in the code.

    python -m tools.state_diagrams [--check]

Writes docs/state-machines.md; with --check it writes nothing and exits with code 1 if the document differs. A state machine is added
to `machines` by importing its table; what a table does not contain (the explanation, and when a state is entered if the table has no
events) is written here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headrace.coordinators.group.classic import states as classic
from headrace.coordinators.group.classic.group import ClassicGroup
from headrace.coordinators.group.consumer import reconciliation
from headrace.coordinators.group.consumer.members import Member
from headrace.coordinators.transaction import states as transaction
from headrace.coordinators.transaction.state import Transaction
from headrace.raft import roles as raft

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "state-machines.md"

INTRODUCTION = """\
# State machines

The transition tables in the code, as diagrams. `make docs` generates this file (`python -m tools.state_diagrams`): change the tables, not
this file. The dot leads to the initial state. A transition that is not listed is a bug and raises an exception, unless the text says
otherwise.
"""

CLASSIC_GROUP = """\
A classic group goes through generations. When its membership changes, the group prepares a rebalance: it waits until every member has
joined again or the rebalance timeout has passed. Then a generation begins, and the group is stable once its leader has sent the
assignment.

A group that is loaded from its records or converted from a consumer group begins as Empty or Stable. A deleted group has no state;
DescribeGroups shows it as Dead.
"""

CONSUMER_MEMBER = """\
The assignor gives each member a target, and the member approaches it with its own heartbeats. It first gives up partitions outside its
target (UnrevokedPartitions), then advances to the target's epoch and waits for partitions that other members have not given up yet
(UnreleasedPartitions). When it owns its whole target, it is Stable until the next one.

Unknown is a state that a newer version has written. One transition is not in the table: a member that unsubscribes from a topic whose
partitions it still uses becomes UnrevokedPartitions at once, whatever its target.
"""

RAFT_VOTER = """\
A voter starts unattached. When its election timeout passes it first asks the others whether they would vote for it (prospective), then
campaigns in a new epoch (candidate), and leads once a majority has voted for it. A leader that resigns, or that a majority no longer
fetches from, waits for its successor (resigned). Observers are only ever unattached or followers.

With one voter, which is all that a node runs today, the only path is unattached, prospective, candidate, leader, resigned.
"""

TRANSACTION = """\
A transactional id is at rest (Empty, CompleteCommit, CompleteAbort) or has an open transaction (Ongoing). The outcome is decided when
PrepareCommit or PrepareAbort is written. From then on the coordinator sends the markers until every partition has one, and writes
CompleteCommit or CompleteAbort.

Dead and PrepareEpochFence exist in Kafka and are never stored here: an expired transactional id is removed with a tombstone, and fencing
is written as PrepareAbort.
"""

ROLE_ENTERED: Mapping[raft.Role, str] = {
    raft.Role.UNATTACHED: "another replica has a newer epoch whose leader is not known, or the round of pre-votes was lost",
    raft.Role.PROSPECTIVE: "the election timeout or the fetch timeout has passed",
    raft.Role.CANDIDATE: "a majority would vote for it: it campaigns in a new epoch",
    raft.Role.LEADER: "a majority has voted for it",
    raft.Role.FOLLOWER: "it has learned who leads its epoch or a newer one",
    raft.Role.RESIGNED: "the node stops, removed itself from the voters, or a majority no longer fetches from it",
}

TRANSACTION_STATE_ENTERED: Mapping[transaction.State, str] = {
    transaction.State.EMPTY: "InitProducerId gives a producer its id and epoch",
    transaction.State.ONGOING: "partitions or offsets are added; if Ongoing, also when a new producer keeps the prepared transaction",
    transaction.State.PREPARE_COMMIT: "EndTxn commits",
    transaction.State.PREPARE_ABORT: "EndTxn aborts; if Ongoing, also when the timeout has passed or a new producer fences this one",
    transaction.State.COMPLETE_COMMIT: "every partition has its commit marker",
    transaction.State.COMPLETE_ABORT: "every partition has its abort marker",
    transaction.State.DEAD: "the transactional id has expired (never stored)",
    transaction.State.PREPARE_EPOCH_FENCE: "the producer is fenced (never stored)",
}


@dataclass(frozen=True)
class Transition:
    source: str
    target: str
    event: str  # label in the diagram, empty if the table has no events
    meaning: str


@dataclass(frozen=True)
class StateMachine:
    title: str
    table: str  # name of the table in the code, with its module
    explanation: str
    initial: str
    transitions: tuple[Transition, ...]


def machines() -> tuple[StateMachine, ...]:
    """Return the state machines whose transitions are tables in the code."""
    return (
        StateMachine(
            "Classic group",
            f"{classic.__name__}.TRANSITIONS",
            CLASSIC_GROUP,
            ClassicGroup("").state.value,
            tuple(
                Transition(source.value, target.value, words(event), event.value)
                for (source, event), target in classic.TRANSITIONS.items()
            ),
        ),
        StateMachine(
            "Member of a consumer group",
            f"{reconciliation.__name__}.TRANSITIONS",
            CONSUMER_MEMBER,
            camel_case(Member("").state),
            tuple(
                Transition(
                    camel_case(source),
                    camel_case(step.state),
                    words(finding),
                    finding.value + ("; advances to the target's epoch" if step.advances else ""),
                )
                for (source, finding), step in reconciliation.TRANSITIONS.items()
            ),
        ),
        StateMachine(
            "Transaction",
            f"{transaction.__name__}.BEFORE",
            TRANSACTION,
            Transaction(0, 0, 0).state.text,
            tuple(
                Transition(source.text, target.text, "", TRANSACTION_STATE_ENTERED[target])
                for target, sources in transaction.BEFORE.items()
                for source in sorted(sources)
            ),
        ),
        StateMachine(
            "Voter of the metadata quorum",
            f"{raft.__name__}.TRANSITIONS",
            RAFT_VOTER,
            raft.Role.UNATTACHED.value,
            tuple(
                Transition(source.value, target.value, "", ROLE_ENTERED[target])
                for source, targets in raft.TRANSITIONS.items()
                for target in raft.Role
                if target in targets
            ),
        ),
    )


def words(member: Enum) -> str:
    """Return the name of an enum's member as words: ALL_JOINED is "all joined"."""
    return member.name.lower().replace("_", " ")


def camel_case(member: Enum) -> str:
    """Return the name of an enum's member in camel case: UNREVOKED_PARTITIONS is UnrevokedPartitions."""
    return "".join(word.capitalize() for word in member.name.split("_"))


def diagram(machine: StateMachine) -> str:
    """Return the Mermaid source of a state machine; transitions between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for transition in machine.transitions:
        arrows.setdefault((transition.source, transition.target), []).append(transition.event)
    lines = ["stateDiagram-v2", f"    [*] --> {machine.initial}"]
    for (source, target), events in arrows.items():
        label = ", ".join(filter(None, events))
        lines.append(f"    {source} --> {target}" + (f" : {label}" if label else ""))
    return "\n".join(lines) + "\n"


def table(machine: StateMachine) -> str:
    """Return the transitions as a Markdown table; those that differ only in the first state share a row."""
    has_events = any(transition.event for transition in machine.transitions)
    sources: dict[tuple[str, ...], list[str]] = {}
    for one in machine.transitions:
        rest = (one.target, one.event, one.meaning) if has_events else (one.target, one.meaning)
        sources.setdefault(rest, []).append(one.source)
    header = ("from", "to", "event", "meaning") if has_events else ("from", "to", "when")
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    lines += [f"| {' | '.join((', '.join(several), *rest))} |" for rest, several in sources.items()]
    return "\n".join(lines) + "\n"


def section(machine: StateMachine) -> str:
    module, name = machine.table.rsplit(".", 1)
    path = f"src/{module.replace('.', '/')}.py"
    return "\n".join(
        (
            f"## {machine.title}\n",
            machine.explanation,
            f"```mermaid\n{diagram(machine)}```\n",
            f"`{name}` in [{path}](../{path}):\n",
            table(machine),
        )
    )


def document() -> str:
    return "\n".join((INTRODUCTION, *map(section, machines())))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.state_diagrams", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with code 1 if the document differs")
    options = parser.parse_args()
    text = document()
    if not options.check:
        DOCUMENT.write_text(text)
    elif not DOCUMENT.exists() or DOCUMENT.read_text() != text:
        print(f"{DOCUMENT.relative_to(ROOT)} differs from the tables in the code: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
