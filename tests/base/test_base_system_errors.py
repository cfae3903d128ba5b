"""Messages about failed system calls say what the system said, without Python's decoration."""

from __future__ import annotations

import socket

import pytest

from headrace.base.system_errors import system_error_text

REFUSED = "[Errno 111] Connect call failed"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file or directory", "/nope"), "No such file or directory"),
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError(f"Multiple exceptions: {REFUSED} ('::1', 1, 0, 0), {REFUSED} ('127.0.0.1', 1)"), "Connection refused"),
        (
            OSError("Multiple exceptions: [Errno 101] unreachable, [Errno 111] refused"),
            "Multiple exceptions: [Errno 101] unreachable, [Errno 111] refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("it has more than 10 bytes"), "it has more than 10 bytes"),
        (ValueError("not a number"), "not a number"),
    ],
)
def test_only_the_text_of_a_system_error_is_shown(error: Exception, text: str) -> None:
    assert system_error_text(error) == text
