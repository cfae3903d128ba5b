"""`headrace users …`: SCRAM users, whose credentials are stored in the metadata log.

A password is salted and hashed before it leaves this machine.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.base.errors import ConfigError, ErrorCode
from headrace.cli.options import Bootstrap, CommandConfig, Json, command_group
from headrace.cli.output import Failures, check, make_error, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from headrace.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SCRAM_MECHANISMS,
    ScramMechanism,
    make_salt,
    salted_password,
)

Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult

app = command_group()

Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", metavar="NAME", help=f"Mechanism: {' or '.join(SCRAM_MECHANISMS)}; may be repeated."),
]


@app.command("list")
def list_(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="User names. Defaults to all users.")
    ] = None,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """List users and the mechanisms with which they can log in."""

    async def work(cluster: Cluster) -> dict[str, dict[str, int]]:
        found = await describe_credentials(cluster, names)
        for name in names or []:
            if not found.get(name):
                raise make_error(ErrorCode.RESOURCE_NOT_FOUND, f"user {name} does not exist")
        return found

    found = with_cluster(Target(bootstrap_server, command_config), work)
    if json:
        show_json([{"name": name, "mechanisms": each} for name, each in sorted(found.items())])
        return
    show_table(
        ("user", "mechanism", "iterations"),
        [(name, mechanism, count) for name, each in sorted(found.items()) for mechanism, count in sorted(each.items())],
    )


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="User name.")],
    mechanism: Mechanisms = None,
    password: Annotated[
        str | None, typer.Option(help="Password. Defaults to a prompt, or to the first line of standard input.")
    ] = None,
    iterations: Annotated[
        int, typer.Option(help=f"Iterations of the hash function, {ITERATIONS_MIN} to {ITERATIONS_MAX}.")
    ] = ITERATIONS_MIN,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Add a user or change its password.

    The default mechanism is SCRAM-SHA-512.
    """
    _check_iterations(iterations)
    chosen = _mechanisms(mechanism) or [ScramMechanism.SHA_512]
    if password is None:
        password = _read_password(name)
    if not password:
        raise ConfigError("the password must not be empty")
    upsertions = [make_upsertion(name, one, password, iterations) for one in chosen]

    async def work(cluster: Cluster) -> list[Result]:
        return await alter_credentials(cluster, upsertions, [])

    for result in with_cluster(Target(bootstrap_server, command_config), work):
        check(result.error_code, result.error_message)
    print(f"user {name} can log in with {', '.join(one.text for one in chosen)}")


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="User names.")],
    mechanism: Mechanisms = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Remove users.

    With --mechanism, only the passwords for these mechanisms are removed.
    """
    chosen = _mechanisms(mechanism)
    failures = Failures()

    async def work(cluster: Cluster) -> list[Result]:
        found = {} if chosen else await describe_credentials(cluster, names)
        deletions = []
        for name in names:
            every = chosen or [SCRAM_MECHANISMS[one] for one in found.get(name, {})]
            if not every:
                failures.found(f"user {name}", ErrorCode.RESOURCE_NOT_FOUND, "the user does not exist")
            deletions += [(name, one) for one in every]
        return await alter_credentials(cluster, [], deletions) if deletions else []

    removed = [
        result.user
        for result in with_cluster(Target(bootstrap_server, command_config), work)
        if not failures.found(f"user {result.user}", result.error_code, result.error_message)
    ]
    for user in dict.fromkeys(removed):
        print(f"removed {' and '.join(one.text for one in chosen) + ' of ' if chosen else ''}user {user}")
    failures.end()


async def describe_credentials(cluster: Cluster, names: Sequence[str] | None) -> dict[str, dict[str, int]]:
    """Return mechanisms and iterations of these users, or of all; unknown users are left out."""
    users = None if not names else [DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
    response: DescribeUserScramCredentialsResponse = await cluster.request(
        DescribeUserScramCredentialsRequest(users=users)
    )
    check(response.error_code, response.error_message)
    known = {mechanism.value: mechanism.text for mechanism in ScramMechanism}
    found: dict[str, dict[str, int]] = {}
    for result in response.results:
        if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            check(result.error_code, result.error_message)
            found[result.user] = {
                known.get(one.mechanism, f"mechanism {one.mechanism}"): one.iterations
                for one in result.credential_infos
            }
    return found


async def alter_credentials(
    cluster: Cluster, upsertions: list[Upsertion], deletions: Sequence[tuple[str, ScramMechanism]]
) -> list[Result]:
    """Send separate requests for each mechanism and kind of change: a request may contain a user only once."""
    results: list[Result] = []
    removals = [Deletion(name=name, mechanism=one) for name, one in deletions]
    for mechanism in ScramMechanism:
        for some, others in (
            ([one for one in upsertions if one.mechanism == mechanism], []),
            ([], [one for one in removals if one.mechanism == mechanism]),
        ):
            if some or others:
                request = AlterUserScramCredentialsRequest(upsertions=some, deletions=others)
                response: AlterUserScramCredentialsResponse = await cluster.request(request)
                results += response.results
    return results


def make_upsertion(name: str, mechanism: ScramMechanism, password: str, iterations: int) -> Upsertion:
    salt = make_salt(random.SystemRandom())
    return Upsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, password, salt, iterations),
    )


def parse_scram_fields(option: str, text: str) -> tuple[str, int]:
    """Parse `iterations=8192,password=secret` like kafka-configs; error messages never repeat the text."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if not fields.get("password") or not set(fields) <= {"password", "iterations"}:
        raise ConfigError(f"{option}: expected [password=…] or [iterations={ITERATIONS_MIN},password=…]")
    try:
        iterations = int(fields.get("iterations", ITERATIONS_MIN))
    except ValueError:
        raise ConfigError(f"{option}: iterations must be a number") from None
    _check_iterations(iterations)
    return fields["password"], iterations


def _check_iterations(iterations: int) -> None:
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ConfigError(f"iterations must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}")


def _mechanisms(names: list[str] | None) -> list[ScramMechanism]:
    for name in names or []:
        if name.upper() not in SCRAM_MECHANISMS:
            raise ConfigError(f"--mechanism {name!r}: expected {' or '.join(SCRAM_MECHANISMS)}")
    return [SCRAM_MECHANISMS[name.upper()] for name in names or []]


def _read_password(name: str) -> str:
    if sys.stdin.isatty():
        password: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return password
    return sys.stdin.readline().rstrip("\r\n")
