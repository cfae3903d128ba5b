"""SCRAM credentials (RFC 5802, RFC 7677), which a server stores instead of a password."""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
SALT_BYTES = 24
NAME_BYTES_MAX = 32_767  # limit of a string on the wire


class ScramMechanism(IntEnum):
    """The SCRAM mechanisms, with their codes on the wire and in the metadata log."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def text(self) -> str:
        return "SCRAM-SHA-256" if self is ScramMechanism.SHA_256 else "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"


SCRAM_MECHANISMS = {mechanism.text: mechanism for mechanism in ScramMechanism}


class ScramCredential(NamedTuple):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "ScramCredential(hidden)"  # a stored key allows offline guessing of the password


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_from_salted(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.digest),
        iterations=iterations,
    )


def make_salt(random: Random) -> bytes:
    return random.getrandbits(SALT_BYTES * 8).to_bytes(SALT_BYTES, "big")


def check_user(name: str, mechanism: int) -> ScramMechanism:
    if not name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in tuple(ScramMechanism):
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return ScramMechanism(mechanism)


def check_iterations(iterations: int) -> None:
    if iterations < ITERATIONS_MIN:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if iterations > ITERATIONS_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
