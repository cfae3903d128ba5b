from __future__ import annotations

import pytest
from tests.cli.command_line import CommandLine

from headrace.testing.cluster import EmbeddedNode


@pytest.fixture
def headrace(headrace_session_node: EmbeddedNode) -> CommandLine:
    return CommandLine(headrace_session_node.bootstrap)
