"""The pytest fixtures that come with Headrace."""

from __future__ import annotations

import pytest
from tests.cli.command_line import CommandLine

from headrace.testing.cluster import EmbeddedNode


@pytest.fixture(scope="session")
def headrace_settings() -> dict[str, str]:
    return {"num.partitions": "3"}


def test_overriding_the_settings_fixture_configures_the_node(headrace_node: EmbeddedNode) -> None:
    headrace = CommandLine(headrace_node.bootstrap)
    headrace("produce", "by-default", stdin="1\n")
    assert headrace("offsets", "get", "by-default", "--json").count('"partition"') == 3
