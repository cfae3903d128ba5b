import pytest
from tests.cli.command_line import CommandLine


@pytest.fixture
def headrace(headrace_cluster):
    return CommandLine(headrace_cluster.bootstrap)
