"""Assignors, chosen by name: pure functions that distribute the partitions of a group's topics over its members."""

from __future__ import annotations

from headrace.coordinators.group.assignors.range import assign_range
from headrace.coordinators.group.assignors.spec import Assignor
from headrace.coordinators.group.assignors.uniform import assign_uniform

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
