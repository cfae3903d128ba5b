"""One module per subject; importing this package fills the registry."""

from __future__ import annotations

from tools.prove.checks import clients, dump_log, kill_nine, differential, simulation, benchmark, clones, schemas

__all__ = ["benchmark", "clients", "clones", "differential", "dump_log", "kill_nine", "schemas", "simulation"]
