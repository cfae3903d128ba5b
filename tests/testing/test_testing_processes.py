"""Ports for nodes that tests start: workers of pytest-xdist choose them at the same time."""

from __future__ import annotations

import pytest

from headrace.testing.processes import FREE_PORTS, PORT_SHARES, _share, free_port


def test_a_port_is_chosen_once() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == len(ports) and all(port in FREE_PORTS for port in ports)


def test_workers_choose_from_different_ports() -> None:
    shares = [_share(f"gw{number}") for number in range(PORT_SHARES)]
    assert all(len(share) > 1000 for share in shares)
    assert len({port for share in shares for port in share}) == sum(map(len, shares))
    assert _share(f"gw{PORT_SHARES}") == shares[0]


@pytest.mark.parametrize("worker", ["", "master"])
def test_a_process_that_is_no_worker_chooses_from_all(worker: str) -> None:
    assert _share(worker) == FREE_PORTS
