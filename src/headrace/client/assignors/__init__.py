"""Who of a classic group reads what: the leader's part. `assignors_named` reads partition.assignment.strategy."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import ConfigError
from headrace.client.assignors.cooperative import CooperativeStickyAssignor
from headrace.client.assignors.range import RangeAssignor
from headrace.client.assignors.roundrobin import RoundRobinAssignor
from headrace.client.assignors.spec import Assignor, Layout
from headrace.client.assignors.sticky import StickyAssignor

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
    """In the order of preference; a name is the short one, or that of Java's class with or without its package."""
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
    """Whether members keep their partitions while the group rebalances: only if none of the assignors minds."""
    return all(assignor.cooperative for assignor in assignors)
