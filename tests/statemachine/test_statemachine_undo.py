"""The undo log compared with a model that keeps a full copy of the state at every position."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.statemachine.undo import Table, UndoLog

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("commit"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("rollback"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_live_and_committed_views_match_a_model_of_full_copies(steps: list[tuple[str, Any, int]]) -> None:
    undo = UndoLog()
    table: Table[str, int] = Table(undo)
    committed: dict[str, int] = {}
    history: list[tuple[int, dict[str, int]]] = []  # live state after each position
    position = 0
    for kind, argument, value in steps:
        live = dict(history[-1][1] if history else committed)
        if kind in ("set", "delete"):
            undo.begin(position)
            if kind == "set":
                table[argument] = value
                live[argument] = value
            elif argument in live:
                del table[argument]
                del live[argument]
            undo.end()
            history.append((position, live))
            position += 1
        elif kind == "commit":
            undo.commit(argument)
            while history and history[0][0] <= argument:
                committed = history.pop(0)[1]
        else:
            undo.rollback_to(0)
            history.clear()
        expected = history[-1][1] if history else committed
        assert dict(table.items()) == expected
        assert dict(table.committed_items()) == committed
    undo.commit(position)
    assert len(undo) == 0
