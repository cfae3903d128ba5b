"""One module per subject; importing this package fills the registry."""

from __future__ import annotations

from tools.prove.checks import benchmark, clients, clones, differential, dump_log, kill_nine, schemas, simulation

__all__ = ["benchmark", "clients", "clones", "differential", "dump_log", "kill_nine", "schemas", "simulation"]
