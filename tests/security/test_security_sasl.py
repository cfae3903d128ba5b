"""PLAIN and SCRAM without a network: successful exchanges, failed ones, and garbage."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.security.credentials import (
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    credential_from_salted,
    make_salt,
    salted_password,
)
from headrace.security.sasl.exchange import Challenge, Failure, Success
from headrace.security.sasl.plain import PlainExchange
from headrace.security.sasl.scram import ScramExchange

USERS = {"alice": "secret", "böb": "pässword", "x": ""}
SECRET = bytes(32)


def credential(mechanism: ScramMechanism, password: str, iterations: int = 4096) -> ScramCredential:
    salt = make_salt(random.Random(7))
    return credential_from_salted(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


PASSWORDS = {"alice": "secret", "a,b=c": "x,y=z"}
KNOWN = {(mechanism, user): credential(mechanism, password) for mechanism in ScramMechanism
         for user, password in PASSWORDS.items()}  # fmt: skip


def server(mechanism: ScramMechanism = ScramMechanism.SHA_256, seed: int = 1) -> ScramExchange:
    return ScramExchange(mechanism, lambda kind, user: KNOWN.get((kind, user)), SECRET, random.Random(seed))


def challenge_of(exchange: ScramExchange, token: bytes) -> Challenge:
    step = exchange.step(token)
    assert isinstance(step, Challenge)
    return step


class Client:
    """The client side of SCRAM, written from RFC 5802 independently of the server."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        *,
        header: str = "n,,",
        nonce: str = "rOprNGfwEbeRWgbNEkqO",
    ) -> None:
        self.mechanism, self.password, self.header = mechanism, password, header
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={escaped},r={nonce}"
        self.first = (header + self.bare).encode()

    def final(self, challenge: bytes, *, nonce: str | None = None, spoil: bool = False) -> bytes:
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac(
            self.mechanism.digest, self.password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
        )
        client_key = hmac.digest(salted, b"Client Key", self.mechanism.digest)
        stored_key = hashlib.new(self.mechanism.digest, client_key).digest()
        without = f"c={base64.b64encode(self.header.encode()).decode()},r={nonce or fields['r']}"
        signed = f"{self.bare},{challenge.decode()},{without}".encode()
        signature = hmac.digest(stored_key, signed, self.mechanism.digest)
        proof = bytearray(a ^ b for a, b in zip(client_key, signature, strict=True))
        proof[0] ^= spoil
        server_key = hmac.digest(salted, b"Server Key", self.mechanism.digest)
        self.expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, self.mechanism.digest))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()


# --- PLAIN


@pytest.mark.parametrize("token", ["\0alice\0secret", "alice\0alice\0secret", "\0böb\0pässword"])
def test_plain_accepts_a_known_user_with_the_right_password(token: str) -> None:
    step = PlainExchange(USERS).step(token.encode())
    assert isinstance(step, Success) and step.user == token.split("\0")[1]


@pytest.mark.parametrize(
    "token",
    [b"", b"\0alice\0wrong", b"\0Alice\0secret", b"\0nobody\0secret", b"\0nobody\0", b"\0x\0", b"\0\0secret", b"\0alice",
     b"\0alice\0secret\0more", b"alice\0secret", b"\0\xff\xfe\0secret", b"\0alice\0secret " + b"x" * 70_000],
)  # fmt: skip
def test_plain_refuses_wrong_and_malformed_credentials(token: bytes) -> None:
    step = PlainExchange(USERS).step(token)
    assert isinstance(step, Failure) and "secret" not in step.reason
    assert step.message is None or "secret" not in step.message


def test_plain_refuses_a_different_authorization_id() -> None:
    step = PlainExchange(USERS).step(b"bob\0alice\0secret")
    assert isinstance(step, Failure) and "authorization id" in step.message


# --- SCRAM


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize("user", list(PASSWORDS))
def test_scram_authenticates_both_client_and_server(mechanism: ScramMechanism, user: str) -> None:
    exchange, client = server(mechanism), Client(mechanism, user, PASSWORDS[user])
    challenge = exchange.step(client.first)
    assert isinstance(challenge, Challenge)
    step = exchange.step(client.final(challenge.token))
    assert step == Success(user, client.expected)


def test_scram_reproduces_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    mechanism = ScramMechanism.SHA_256
    known = credential_from_salted(mechanism, salted_password(mechanism, "pencil", salt, 4096), salt, 4096)
    exchange = ScramExchange(mechanism, lambda kind, user: known, SECRET, random.Random(1))
    exchange._nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    challenge = challenge_of(exchange, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge.token == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.step(final) == Success("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda client, challenge: client.final(challenge, spoil=True),
        lambda client, challenge: client.final(challenge, nonce="rOprNGfwEbeRWgbNEkqO"),
        lambda client, challenge: client.final(challenge)[:-8] + b"\xff\xff",
        lambda client, challenge: b"c=biws,r=x,p=AAAA",
        lambda client, challenge: client.final(challenge).replace(b"c=biws", b"c=eSws"),
        lambda client, challenge: b"",
    ],
)
def test_scram_refuses_an_invalid_final_message(spoil: Callable[..., Any]) -> None:
    exchange, client = server(), Client(ScramMechanism.SHA_256, "alice", "secret")
    challenge = challenge_of(exchange, client.first)
    assert isinstance(exchange.step(spoil(client, challenge.token)), Failure)


@pytest.mark.parametrize(
    ("user", "password", "named"),
    [("alice", "secret", True), ("alice", "wrong", False), ("nobody", "secret", False)],
)
def test_a_nonce_repeated_by_old_librdkafka_is_refused_with_that_reason(user: str, password: str, named: bool) -> None:
    """Repeat the client's nonce like librdkafka before 2.6.1; RFC 5802 requires a refusal, and Kafka refuses it too."""
    nonce = "rOprNGfwEbeRWgbNEkqO"
    exchange, client = server(), Client(ScramMechanism.SHA_256, user, password, nonce=nonce)
    challenge = challenge_of(exchange, client.first).token
    theirs = challenge.decode().split(",")[0].removeprefix("r=")
    step = exchange.step(client.final(challenge, nonce=nonce + theirs))
    assert isinstance(step, Failure) and step.message is None
    assert ("librdkafka before 2.6.1" in step.reason) is named
    assert ("wrong user name or password" in step.reason) is not named


def test_a_wrong_password_and_an_unknown_user_are_indistinguishable() -> None:
    def fail(user: str, password: str) -> tuple[int, str, str]:
        exchange, client = server(), Client(ScramMechanism.SHA_256, user, password)
        challenge = exchange.step(client.first)
        assert isinstance(challenge, Challenge)
        fields = dict(part.split("=", 1) for part in challenge.token.decode().split(","))
        step = exchange.step(client.final(challenge.token))
        assert isinstance(step, Failure) and step.message is None
        return len(base64.b64decode(fields["s"])), fields["i"], step.reason.replace(user, "")

    assert fail("alice", "wrong") == fail("nobody", "secret")
    first, again = server(seed=1), server(seed=2)
    token = Client(ScramMechanism.SHA_256, "nobody", "").first
    salts = {challenge_of(one, token).token.split(b",s=")[1] for one in (first, again)}
    assert len(salts) == 1, "an unknown user must not be known by a salt that changes"


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,n=,r=x", b"n,,r=x,n=alice", b"p=tls-unique,,n=alice,r=x", b"n,,n=a=lice,r=x", b"n,,n=alice,r=x y",
     b"n,,n=alice,r=" + b"x" * 2000, b"\xff", b"n,,n=alice,r=x,tokenauth=true", b"n,a=bob,n=alice,r=x"],
)  # fmt: skip
def test_scram_refuses_an_invalid_first_message(first: bytes) -> None:
    assert isinstance(server().step(first), Failure)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3), st.booleans())
def test_an_exchange_returns_a_step_for_any_bytes(tokens: list[bytes], plain: bool) -> None:
    exchange = PlainExchange(USERS) if plain else server()
    for token in tokens:
        step = exchange.step(token)
        assert isinstance(step, Challenge | Success | Failure)
        if not isinstance(step, Challenge):
            break


def test_credentials_are_hidden_in_repr_and_str() -> None:
    known = credential(SCRAM_MECHANISMS["SCRAM-SHA-256"], "secret")
    assert "hidden" in repr(known) and "hidden" in str(known)
