"""Assignors of classic groups, run by the group's leader; `assignors_named` reads partition.assignment.strategy."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import ConfigError
from headrace.client.group.assignors.cooperative import CooperativeStickyAssignor
from headrace.client.group.assignors.range import RangeAssignor
from headrace.client.group.assignors.roundrobin import RoundRobinAssignor
from headrace.client.group.assignors.spec import Assignor, Layout
from headrace.client.group.assignors.sticky import StickyAssignor

__all__ = ["Assignor", "Layout", "assignors_named", "is_cooperative"]

JAVA_PACKAGE = "org.apache.kafka.clients.consumer."
_KINDS: tuple[type[Assignor], ...] = (
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    CooperativeStickyAssignor,
)
_BY_NAME = {name: kind for kind in _KINDS for name in (kind.name, kind.__name__, JAVA_PACKAGE + kind.__name__)}


def assignors_named(names: Sequence[str]) -> list[Assignor]:
    """Return the assignors in order of preference.

    A name is the short one, or that of Java's class with or without its package. Raise ConfigError if one is unknown or
    occurs twice, or if there is none.
    """
    if not names:
        raise ConfigError("partition.assignment.strategy names no assignor")
    found: dict[str, Assignor] = {}
    for name in names:
        kind = _BY_NAME.get(name.strip())
        if kind is None:
            known = ", ".join(kind.name for kind in _KINDS)
            raise ConfigError(f"partition.assignment.strategy: there is no assignor {name!r}; there are {known}")
        if kind.name in found:
            raise ConfigError(f"partition.assignment.strategy names {kind.name} twice")
        found[kind.name] = kind()
    return list(found.values())


def is_cooperative(assignors: Sequence[Assignor]) -> bool:
    """Return whether members keep their partitions during a rebalance: only if all assignors are cooperative."""
    return all(assignor.cooperative for assignor in assignors)
