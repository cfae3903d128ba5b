"""Log lines are one line each, whatever their arguments contain."""

from __future__ import annotations

import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.prove.hostile.log_lines import FORGED, POISON, judge_lines

from headrace.observe.log_format import CONTINUATION, LINE_FORMAT, LineFormatter, escape


def _formatted(message: str, *args: object, error: BaseException | None = None) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("headrace.server", logging.WARNING, __file__, 1, message, args, info)
    return LineFormatter().format(record)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_becomes_one_encodable_line(text: str) -> None:
    line = _formatted("client %s did it", text)
    assert len(line.encode().decode().splitlines()) == 1
    assert line.endswith("did it (headrace.server)")


def test_ordinary_text_is_not_escaped() -> None:
    assert escape("orders-7 of Zoë, 日本, c:\\data") == "orders-7 of Zoë, 日本, c:\\data"


def test_line_breaks_and_terminal_sequences_are_escaped() -> None:
    assert escape("a\r\nb\tc\x1b[2J\x85\u2028\u202e") == "a\\r\\nb\\tc\\x1b[2J\\x85\\u2028\\u202e"


def test_a_traceback_cannot_forge_a_line() -> None:
    try:
        raise ValueError(POISON)
    except ValueError as error:
        text = _formatted("a request of %s failed", POISON, error=error)
    first, *rest = text.split("\n")
    assert judge_lines([first, *rest]) > 1
    assert any(FORGED in line for line in rest)
    assert all(line.startswith(CONTINUATION) for line in rest)


def test_judge_lines_rejects_a_forged_line() -> None:
    record = logging.LogRecord("headrace", logging.INFO, __file__, 1, "client %s", (POISON,), None)
    with pytest.raises(AssertionError, match=r"forged|not a line of the log"):
        judge_lines(logging.Formatter(LINE_FORMAT).format(record).split("\n"))


def test_stack_info_is_indented() -> None:
    record = logging.LogRecord("headrace", logging.INFO, __file__, 1, "here", (), None, sinfo="Stack\n  File")
    assert LineFormatter().format(record).split("\n")[1:] == [f"{CONTINUATION}Stack", f"{CONTINUATION}  File"]
    assert sys.exc_info() == (None, None, None)
