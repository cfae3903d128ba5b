"""The client side of SASL, without I/O: the first token to send, and the next token for each one received."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Protocol

from headrace.base.errors import HeadraceError
from headrace.security.credentials import ScramMechanism, salted_password

if TYPE_CHECKING:
    from random import Random

NONCE_BITS = 160
ITERATIONS_MAX = 1_000_000  # limits the work that a server can impose
_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[a-zA-Z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})(?:,.*)?"
)
_HEADER = "n,,"  # no channel binding


class BadServer(HeadraceError):
    """The server violates the mechanism, or cannot prove that it knows the password."""


class ClientExchange(Protocol):
    def first(self) -> bytes: ...

    def response(self, token: bytes) -> bytes | None:
        """Return the next token to send, or None once the server has proved itself. Raise BadServer if it fails to."""


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._token = b"\0".join((b"", user.encode(), password.encode()))

    def first(self) -> bytes:
        return self._token

    def response(self, token: bytes) -> bytes | None:
        return None


class ScramClient:
    def __init__(self, mechanism: ScramMechanism, user: str, password: str, random: Random) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = f"{random.getrandbits(NONCE_BITS):x}"
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._proof: bytes | None = None  # expected server signature, set once our own proof is sent

    def first(self) -> bytes:
        return (_HEADER + self._bare).encode()

    def response(self, token: bytes) -> bytes | None:
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise BadServer("a SCRAM message must be UTF-8") from error
        if self._proof is None:
            return self._final(text)
        if not hmac.compare_digest(text.encode(), self._proof):
            raise BadServer("the broker cannot prove that it knows the password")
        return None

    def _final(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None or not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise BadServer("this is not a first SCRAM message of a server")
        iterations = int(found["iterations"])
        if not 0 < iterations <= ITERATIONS_MAX:
            raise BadServer(f"SCRAM with {iterations} iterations; allowed are 1 to {ITERATIONS_MAX}")
        try:
            salt = base64.b64decode(found["salt"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadServer("the salt of SCRAM is no base64") from error
        digest = self._mechanism.digest
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        without_proof = f"c={_encode(_HEADER.encode())},r={found['nonce']}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, digest)
        self._proof = b"v=" + _encode(hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)).encode()
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={_encode(proof)}".encode()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
