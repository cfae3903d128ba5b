"""Builds rules from the flags of `headrace acls`: resources, operations, and the permissions of producers and consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from headrace.base.errors import ConfigError
from headrace.security.acls import WILDCARD, Acl, Pattern, Permission
from headrace.security.resources import CLUSTER_NAME, Operation, Resource

Rule = Acl
Host = TypeVar("Host", bound=str | None)

ANY_OPERATION = 1
_PATTERNS = {"literal": Pattern.LITERAL, "prefixed": Pattern.PREFIXED}
_FILTER_PATTERNS: dict[str, int] = {**_PATTERNS, "any": 1, "match": 2}


class Resources(NamedTuple):
    topics: list[str] | None
    groups: list[str] | None
    cluster: bool
    transactional_ids: list[str] | None
    tokens: list[str] | None
    users: list[str] | None

    def all(self) -> list[tuple[int, str]]:
        return [
            *((Resource.TOPIC, name) for name in self.topics or []),
            *((Resource.GROUP, name) for name in self.groups or []),
            *([(Resource.CLUSTER, CLUSTER_NAME)] if self.cluster else []),
            *((Resource.TRANSACTIONAL_ID, name) for name in self.transactional_ids or []),
            *((Resource.DELEGATION_TOKEN, name) for name in self.tokens or []),
            *((Resource.USER, name) for name in self.users or []),
        ]


class Principals(NamedTuple):
    """The principals that rules allow or deny, and the hosts for which they do."""

    allow: list[str] | None
    deny: list[str] | None
    allow_hosts: list[str] | None
    deny_hosts: list[str] | None

    def all(self, any_host: Host) -> list[tuple[str, str | Host, Permission]]:
        """Return principal, host and permission of each rule, with `any_host` where no host is given."""
        allow_hosts: Sequence[str | Host] = self.allow_hosts or [any_host]
        deny_hosts: Sequence[str | Host] = self.deny_hosts or [any_host]
        return [
            *((principal, host, Permission.ALLOW) for principal in self.allow or [] for host in allow_hosts),
            *((principal, host, Permission.DENY) for principal in self.deny or [] for host in deny_hosts),
        ]


def parse_pattern_type(text: str, *, filters: bool) -> int:
    known = _FILTER_PATTERNS if filters else _PATTERNS
    if text.lower() not in known:
        raise ConfigError(f"--resource-pattern-type {text!r}: expected {', '.join(known)}")
    return known[text.lower()]


def parse_operations(names: list[str] | None, default: int) -> list[int]:
    """Parse Kafka's names of operations in any spelling: DescribeConfigs, describe-configs, DESCRIBE_CONFIGS."""
    known = {one.name.replace("_", "").lower(): one for one in Operation if one is not Operation.NONE}
    found: list[int] = []
    for name in names or []:
        one = known.get(name.replace("_", "").replace("-", "").lower())
        if one is None:
            raise ConfigError(
                f"--operation {name!r}: expected {', '.join(each.name.lower() for each in known.values())}"
            )
        found.append(one)
    return found or [default]


def expand_convenience_flags(
    named: Resources, *, producer: bool, consumer: bool, idempotent: bool
) -> list[tuple[int, str, int]]:
    """Return the resources and operations that --producer and --consumer stand for in kafka-acls."""
    if not named.topics:
        raise ConfigError("--producer and --consumer need --topic")
    if consumer and not named.groups:
        raise ConfigError("--consumer needs --group")
    found: list[tuple[int, str, int]] = []
    for topic in named.topics:
        if producer:
            found += [(Resource.TOPIC, topic, one) for one in (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)]
        if consumer:
            found += [(Resource.TOPIC, topic, one) for one in (Operation.READ, Operation.DESCRIBE)]
    if consumer:
        found += [(Resource.GROUP, group, Operation.READ) for group in named.groups or []]
    if producer:
        for name in named.transactional_ids or []:
            found += [(Resource.TRANSACTIONAL_ID, name, one) for one in (Operation.WRITE, Operation.DESCRIBE)]
        if idempotent:
            found.append((Resource.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE))
    return list(dict.fromkeys(found))


def make_rules(requested: list[tuple[int, str, int]], pattern: int, principals: Principals) -> Iterator[Rule]:
    for kind, name, operation in requested:
        one = Pattern.LITERAL if kind == Resource.CLUSTER else pattern
        for principal, host, permission in principals.all(WILDCARD):
            yield Rule(kind, name, one, principal, host, operation, permission)
