"""`headrace acls …`: access rules, with the flags of kafka-acls."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError, KafkaError
from headrace.cli.acl_rules import (
    ANY_OPERATION,
    Principals,
    Resources,
    Rule,
    expand_convenience_flags,
    make_rules,
    parse_operations,
    parse_pattern_type,
)
from headrace.cli.options import Bootstrap, CommandConfig, Json, command_group
from headrace.cli.output import Failures, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.admin.acls import create_acls, describe_acls
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from headrace.security.acls import ANY, AclFilter, Pattern, Permission
from headrace.security.resources import Operation, Resource

app = command_group()

Topic = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="Topic, or * for all topics; may be repeated.")
]
Group = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Group, or * for all groups; may be repeated.")
]
ClusterFlag = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
TransactionalId = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="NAME", help="Transactional id, or * for all; may be repeated."),
]
Token = Annotated[
    list[str] | None,
    typer.Option("--delegation-token", metavar="NAME", help="Delegation token, or * for all; may be repeated."),
]
UserPrincipal = Annotated[
    list[str] | None,
    typer.Option("--user-principal", metavar="NAME", help="User as the resource of a rule; may be repeated."),
]
PatternType = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type", help="Pattern type: literal or prefixed; list and remove also accept any and match."
    ),
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation", metavar="NAME", help="Operation: Read, Write, Describe …; may be repeated. Defaults to all."
    ),
]
AllowPrincipal = Annotated[
    list[str] | None,
    typer.Option("--allow-principal", metavar="User:NAME", help="Principal of rules that allow; may be repeated."),
]
DenyPrincipal = Annotated[
    list[str] | None,
    typer.Option("--deny-principal", metavar="User:NAME", help="Principal of rules that deny; may be repeated."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="ADDRESS", help="Address for --allow-principal. Defaults to all addresses."),
]
DenyHost = Annotated[
    list[str] | None,
    typer.Option("--deny-host", metavar="ADDRESS", help="Address for --deny-principal. Defaults to all addresses."),
]
Producer = Annotated[bool, typer.Option("--producer", help="All operations that a producer to --topic needs.")]
Consumer = Annotated[
    bool, typer.Option("--consumer", help="All operations that a consumer of --topic in --group needs.")
]
Idempotent = Annotated[
    bool, typer.Option("--idempotent", help="With --producer: also those of an idempotent producer.")
]


@app.command("list")
def list_(
    topic: Topic = None,
    group: Group = None,
    cluster: ClusterFlag = False,
    transactional_id: TransactionalId = None,
    delegation_token: Token = None,
    user_principal: UserPrincipal = None,
    resource_pattern_type: PatternType = "literal",
    principal: Annotated[
        list[str] | None,
        typer.Option("--principal", metavar="User:NAME", help="Principal. Defaults to all principals."),
    ] = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """List the rules for these resources, or all rules."""
    named = Resources(topic, group, cluster, transactional_id, delegation_token, user_principal)
    pattern = parse_pattern_type(resource_pattern_type, filters=True)
    everything: list[tuple[int, str | None]] = [(ANY, None)]
    any_principal: list[str | None] = [None]
    filters = [
        AclFilter(kind, name, pattern if name is not None else ANY, who, None, ANY, ANY)
        for kind, name in named.all() or everything
        for who in principal or any_principal
    ]

    async def work(connected: Cluster) -> list[Rule]:
        return [rule for one in filters for rule in await describe_acls(connected, one)]

    found = with_cluster(Target(bootstrap_server, command_config), work)
    _show(sorted(set(found)), json)


@app.command()
def add(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    cluster: ClusterFlag = False,
    transactional_id: TransactionalId = None,
    delegation_token: Token = None,
    user_principal: UserPrincipal = None,
    resource_pattern_type: PatternType = "literal",
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Add rules that allow or deny operations for principals."""
    named = Resources(topic, group, cluster, transactional_id, delegation_token, user_principal)
    pattern = parse_pattern_type(resource_pattern_type, filters=False)
    requested = _targets(named, operation, producer, consumer, idempotent, default=Operation.ALL)
    principals = Principals(allow_principal, deny_principal, allow_host, deny_host)
    new = list(make_rules(requested, pattern, principals))
    if not new:
        raise ConfigError("name a principal with --allow-principal or --deny-principal")

    async def work(connected: Cluster) -> dict[Rule, KafkaError | None]:
        return await create_acls(connected, new)

    failures = Failures()
    good = []
    for rule, error in with_cluster(Target(bootstrap_server, command_config), work).items():
        if error is None:
            good.append(rule)
        else:
            failures.found(rule.resource_name, error.code, error.message)
    if json or good:
        _show(sorted(set(good)), json)
    failures.end()


@app.command()
def remove(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    cluster: ClusterFlag = False,
    transactional_id: TransactionalId = None,
    delegation_token: Token = None,
    user_principal: UserPrincipal = None,
    resource_pattern_type: PatternType = "literal",
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    force: Annotated[bool, typer.Option("--force", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Remove the rules that match.

    Without principals, all rules for the resources are removed.
    """
    named = Resources(topic, group, cluster, transactional_id, delegation_token, user_principal)
    pattern = parse_pattern_type(resource_pattern_type, filters=True)
    requested = _targets(named, operation, producer, consumer, idempotent, default=ANY_OPERATION)
    principals = Principals(allow_principal, deny_principal, allow_host, deny_host)
    filters = list(_filters(requested, pattern, principals))
    if not force and sys.stdin.isatty() and not typer.confirm(f"remove all rules that {len(filters)} filter(s) match?"):
        return

    async def work(connected: Cluster) -> DeleteAclsResponse:
        response: DeleteAclsResponse = await connected.request(DeleteAclsRequest(filters=filters))
        return response

    failures = Failures()
    removed: list[Rule] = []
    for result in with_cluster(Target(bootstrap_server, command_config), work).filter_results:
        if failures.found("filter", result.error_code, result.error_message):
            continue
        removed += [
            Rule(
                one.resource_type,
                one.resource_name,
                one.pattern_type,
                one.principal,
                one.host,
                one.operation,
                one.permission_type,
            )
            for one in result.matching_acls
            if not failures.found(one.resource_name, one.error_code, one.error_message)
        ]
    _show(sorted(set(removed)), json)
    failures.end()


def _targets(
    named: Resources, names: list[str] | None, producer: bool, consumer: bool, idempotent: bool, *, default: int
) -> list[tuple[int, str, int]]:
    if producer or consumer:
        if names:
            raise ConfigError(
                "--operation cannot be combined with --producer or --consumer, which imply the operations"
            )
        return expand_convenience_flags(named, producer=producer, consumer=consumer, idempotent=idempotent)
    found = named.all()
    if not found:
        raise ConfigError("name a resource: --topic, --group, --cluster, --transactional-id …")
    return [(kind, name, one) for kind, name in found for one in parse_operations(names, default)]


def _filters(
    requested: list[tuple[int, str, int]], pattern: int, principals: Principals
) -> Iterator[DeleteAclsRequest.DeleteAclsFilter]:
    chosen: Sequence[tuple[str | None, str | None, int]] = principals.all(None) or [(None, None, ANY)]
    for kind, name, operation in requested:
        for who, host, permission in chosen:
            yield DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=kind,
                resource_name_filter=name,
                pattern_type_filter=pattern,
                principal_filter=who,
                host_filter=host,
                operation=operation,
                permission_type=permission,
            )


def _show(found: list[Rule], json: bool) -> None:
    texts: list[dict[str, Any]] = [
        {
            "resource_type": _name(Resource, rule.resource_type),
            "resource_name": rule.resource_name,
            "pattern_type": _name(Pattern, rule.pattern_type),
            "principal": rule.principal,
            "host": rule.host,
            "operation": _name(Operation, rule.operation),
            "permission": _name(Permission, rule.permission),
        }
        for rule in found
    ]
    if json:
        show_json(texts)
    else:
        columns = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
        show_table(columns, [tuple(one.values()) for one in texts])


def _name(kind: type[IntEnum], code: int) -> str:
    return kind(code).name if code in tuple(kind) else f"UNKNOWN({code})"
