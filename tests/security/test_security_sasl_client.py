"""The client side of SASL against our server, and against servers that lie."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.security.credentials import (
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    credential_from_salted,
    salted_password,
)
from headrace.security.sasl.client import BadServer, PlainClient, ScramClient
from headrace.security.sasl.exchange import Challenge, Failure, Success
from headrace.security.sasl.plain import PlainExchange
from headrace.security.sasl.scram import ScramExchange

SALT = b"s" * 24


def server(mechanism: ScramMechanism, password: str, user: str = "alice") -> ScramExchange:
    def lookup(_mechanism: ScramMechanism, name: str) -> ScramCredential:
        salted = salted_password(mechanism, password, SALT, 4096)
        return credential_from_salted(mechanism, salted, SALT, 4096) if name == user else None

    return ScramExchange(mechanism, lookup, b"secret", random.Random(1))


def test_plain_login_succeeds_only_with_the_right_password() -> None:
    exchange = PlainExchange({"alice": "wonder,land"})
    client = PlainClient("alice", "wonder,land")
    assert exchange.step(client.first()) == Success("alice") and client.response(b"") is None
    assert isinstance(exchange.step(PlainClient("alice", "x").first()), Failure)


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS.values())
@pytest.mark.parametrize("user", ["alice", "a=b,c", "Zoë"])
def test_scram_authenticates_both_client_and_server(mechanism: ScramMechanism, user: str) -> None:
    exchange, client = server(mechanism, "p=w,d", user), ScramClient(mechanism, user, "p=w,d", random.Random(2))
    challenge = exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    done = exchange.step(client.response(challenge.token))
    assert isinstance(done, Success) and done.user == user
    assert client.response(done.token) is None


def test_a_wrong_password_is_refused() -> None:
    exchange = server(ScramMechanism.SHA_256, "right")
    client = ScramClient(ScramMechanism.SHA_256, "alice", "wrong", random.Random(2))
    assert isinstance(exchange.step(client.response(exchange.step(client.first()).token)), Failure)  # type: ignore[union-attr]


def started_client() -> tuple[ScramClient, str]:
    client = ScramClient(ScramMechanism.SHA_256, "alice", "right", random.Random(2))
    nonce = client.first().rpartition(b"r=")[2].decode()
    return client, nonce


@pytest.mark.parametrize(
    "token",
    [
        "",
        "r={nonce},s=c2FsdA==,i=4096",  # adds nothing to our nonce
        "r=other,s=c2FsdA==,i=4096",
        "r={nonce}x,s=?,i=4096",
        "r={nonce}x,s=c2FsdA,i=4096",
        "r={nonce}x,s=c2FsdA==,i=0",
        "r={nonce}x,s=c2FsdA==,i=999999999",
        "e=other-error",
    ],
)
def test_an_invalid_server_challenge_raises_bad_server(token: str) -> None:
    client, nonce = started_client()
    with pytest.raises(BadServer):
        client.response(token.format(nonce=nonce).encode())


def test_a_server_that_cannot_prove_the_password_raises_bad_server() -> None:
    client, nonce = started_client()
    assert client.response(f"r={nonce}x,s=c2FsdA==,i=4096".encode()) is not None
    with pytest.raises(BadServer, match="cannot prove"):
        client.response(b"v=AAAA")


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_random_server_tokens_raise_bad_server(token: bytes) -> None:
    client, _ = started_client()
    with pytest.raises(BadServer):
        client.response(token)
