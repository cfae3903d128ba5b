"""Quotas of users, clients and addresses, and SCRAM passwords, which Kafka treats as options of a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.base.errors import ConfigError
from headrace.cli.commands.users import alter_credentials, describe_credentials, make_upsertion, parse_scram_fields
from headrace.cli.options import refuse_unset
from headrace.cli.output import Failures, check, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.frames import UnexpectedResponse
from headrace.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from headrace.security.credentials import SCRAM_MECHANISMS

EXACT, DEFAULT, ANY = 0, 1, 2
USER = "user"
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
          "connection_creation_rate")  # fmt: skip


def describe(target: Target, entities: Sequence[tuple[str, str | None]], json: bool) -> None:
    """Print the quotas of entities, given as types and names: None stands for all, an empty name for the default."""
    [(kind, user), *more] = entities
    with_passwords = kind == USER and not more and user != ""

    async def work(cluster: Cluster) -> tuple[DescribeClientQuotasResponse, dict[str, dict[str, int]]]:
        passwords = await describe_credentials(cluster, None if user is None else [user]) if with_passwords else {}
        return await cluster.request(_description_of(entities)), passwords

    response, passwords = with_cluster(target, work)
    check(response.error_code, response.error_message)
    found: list[dict[str, Any]] = [
        {
            "entity": {part.entity_type: part.entity_name for part in entry.entity},
            "options": {value.key: value.value for value in entry.values},
        }
        for entry in response.entries or []
    ]
    found += [
        {"entity": {USER: name}, "options": {mechanism: f"iterations={count}" for mechanism, count in each.items()}}
        for name, each in sorted(passwords.items())
        if each
    ]
    if json:
        show_json(found)
        return
    show_table(
        ("entity", "option", "value"),
        [(_shown(one["entity"]), name, value) for one in found for name, value in sorted(one["options"].items())],
    )


def _description_of(entities: Sequence[tuple[str, str | None]]) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(
                entity_type=kind,
                match_type=ANY if name is None else DEFAULT if name == "" else EXACT,
                match=name or None,
            )
            for kind, name in entities
        ],
        strict=True,
    )


def alter(
    target: Target,
    entities: Sequence[tuple[str, str]],
    add: Mapping[str, str],
    delete: Sequence[str],
    validate_only: bool,
) -> None:
    passwords = {name: text for name, text in add.items() if name in SCRAM_MECHANISMS}
    removals = [name for name in delete if name in SCRAM_MECHANISMS]
    kind, user = entities[0]
    if passwords or removals:
        if kind != USER or not user or len(entities) > 1:
            raise ConfigError("only a user has a password: use --entity-type users --entity-name NAME")
        if validate_only:
            raise ConfigError("--validate-only does not work with passwords")
    operations = AlterClientQuotasRequest.OpData
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[AlterClientQuotasRequest.EntityData(entity_type=one, entity_name=name or None) for one, name in entities],
                ops=[
                    *(operations(key=name, value=_rate(name, text)) for name, text in add.items() if name not in passwords),
                    *(operations(key=name, remove=True) for name in delete if name not in removals),
                ],
            )
        ],
        validate_only=validate_only,
    )  # fmt: skip
    upsertions = [
        make_upsertion(user, SCRAM_MECHANISMS[name], *parse_scram_fields(name, text))
        for name, text in passwords.items()
    ]
    failures = Failures()

    async def work(cluster: Cluster) -> None:
        if delete:
            await _check_deletions(cluster, entities, delete)
        if upsertions or removals:
            results = await alter_credentials(
                cluster, upsertions, [(user, SCRAM_MECHANISMS[name]) for name in removals]
            )
            for result in results:
                failures.found(f"user {result.user}", result.error_code, result.error_message)
        if request.entries[0].ops:
            response = await _alter_quotas(cluster, request)
            for entry in response.entries:
                check(entry.error_code, entry.error_message)

    with_cluster(target, work)
    failures.end()


async def _check_deletions(cluster: Cluster, entities: Sequence[tuple[str, str]], names: Sequence[str]) -> None:
    """Raise ConfigError for a quota or password that the entity does not have."""
    kind, user = entities[0]
    response: DescribeClientQuotasResponse = await cluster.request(_description_of(entities))
    check(response.error_code, response.error_message)
    own = {value.key for entry in response.entries or [] for value in entry.values}
    if kind == USER and user and len(entities) == 1:
        own |= (await describe_credentials(cluster, [user])).get(user, {}).keys()
    refuse_unset(_shown(dict(entities)), names, own, (*QUOTAS, *SCRAM_MECHANISMS))


async def _alter_quotas(cluster: Cluster, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    try:
        response: AlterClientQuotasResponse = await cluster.request(request)
    except UnexpectedResponse as error:
        raise ConfigError(f"quotas cannot be changed: {error}; a Headrace node does not enforce quotas yet") from error
    return response


def _rate(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--add-config: {name}={text!r} is not a number") from None


def _shown(entity: Mapping[str, str | None]) -> str:
    return ", ".join(f"{kind} {name or '(default)'}" for kind, name in sorted(entity.items()))
