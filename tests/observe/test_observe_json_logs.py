"""Log records as JSON: one line each, whatever the message contains."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from headrace.observe.json_logs import JsonFormatter


def record(message: str, *arguments: Any, exc_info: Any = None) -> logging.LogRecord:
    made = logging.LogRecord("headrace.broker", logging.WARNING, "f.py", 1, message, arguments, exc_info)
    made.created = 1_700_000_000.123
    return made


def test_a_record_is_one_object_with_its_time_level_logger_and_message() -> None:
    assert json.loads(JsonFormatter().format(record("%s is offline: %d", "a-0", 7))) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "WARNING",
        "logger": "headrace.broker",
        "message": "a-0 is offline: 7",
    }


def test_hostile_text_and_tracebacks_stay_on_one_line() -> None:
    text = 'client "x"\n2026 ERROR forged\x1b[2J\u2028\x85'
    try:
        raise ValueError(text)
    except ValueError:
        line = JsonFormatter().format(record("%s", text, exc_info=sys.exc_info()))
    assert line.isascii() and line.isprintable()
    found = json.loads(line)
    assert found["message"] == text and found["exception"].startswith("Traceback") and text in found["exception"]
