"""The server side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802), without channel binding.

Neither side ever sends the password: the client proves that it can derive the stored key, the server that it has the server key.
An unknown user gets a challenge too, with a salt that is always the same for a name, and fails where a wrong password fails.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.security.credentials import ITERATIONS_MIN, SALT_BYTES, ScramCredential, ScramMechanism
from headrace.security.sasl.exchange import Challenge, Failure, Step, Success

if TYPE_CHECKING:
    from random import Random

NONCE_BITS = 160
CLIENT_NONCE_CHARACTERS_MAX = 1024
_FIRST = re.compile(
    r"(?P<header>(?P<flag>[nyp])(?:=(?P<binding>[^,]*))?,(?:a=(?P<authorization>[^,]*))?,)"
    r"(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[a-zA-Z]+=[^,]+)*))"
)
_FINAL = re.compile(
    r"(?P<bare>c=(?P<header>[a-zA-Z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[a-zA-Z]+=[^,]+)*),p=(?P<proof>[a-zA-Z0-9+/=]+)"
)
_DOUBLED_NONCE = (
    "user name and password are right, but the client sent its nonce twice in the final SCRAM message: a bug of librdkafka before 2.6.1"
    " (confluent-kafka before 2.6.1), which Kafka 4 refuses as well; update the client, or use PLAIN over TLS"
)

Lookup = Callable[[ScramMechanism, str], ScramCredential | None]


class ScramExchange:
    def __init__(self, mechanism: ScramMechanism, lookup: Lookup, secret: bytes, random: Random) -> None:
        """Start an exchange; the salts of unknown users are derived from `secret`, which belongs to this node."""
        self._mechanism = mechanism
        self._lookup = lookup
        self._secret = secret
        self._nonce = f"{random.getrandbits(NONCE_BITS):x}"
        self._client_nonce = ""
        self._user = ""
        self._known = False
        self._credential: ScramCredential | None = None
        self._header = b""
        self._first_messages = ""  # both first messages, which the proofs sign

    def step(self, token: bytes) -> Step:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            return Failure("a SCRAM message must be UTF-8")
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> Step:
        found = _FIRST.fullmatch(text)
        if found is None or len(found["nonce"]) > CLIENT_NONCE_CHARACTERS_MAX:
            return Failure("this is not a first SCRAM message")
        if found["flag"] == "p":
            return Failure("the client requires channel binding, which Kafka does not support")
        user = _unescape(found["user"])
        authorization = _unescape(found["authorization"] or "")
        if user is None or authorization is None:
            return Failure("the user name of a SCRAM message is not escaped correctly")
        if "tokenauth=true" in found["extensions"].split(","):
            return Failure("the client uses a delegation token, which this version does not support")
        if authorization and authorization != user:
            return Failure(
                "the authorization id differs from the user name",
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        known = self._lookup(self._mechanism, user)
        self._user, self._known = user, known is not None
        self._credential = credential = known if known is not None else self._unknown_user(user)
        self._client_nonce = found["nonce"]
        self._nonce = self._client_nonce + self._nonce
        self._header = found["header"].encode()
        response = f"r={self._nonce},s={_encode(credential.salt)},i={credential.iterations}"
        self._first_messages = f"{found['bare']},{response}"
        return Challenge(response.encode())

    def _final(self, text: str, credential: ScramCredential) -> Step:
        found = _FINAL.fullmatch(text)
        if found is None:
            return Failure("this is not a final SCRAM message")
        proof, header = _decode(found["proof"]), _decode(found["header"])
        if proof is None or header is None or len(proof) != len(credential.stored_key):
            return Failure("the final message of SCRAM has no proof of the right size")
        digest = self._mechanism.digest
        signed = f"{self._first_messages},{found['bare']}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        verified = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        if not (verified and self._known):
            return Failure(f"wrong user name or password for {self._user[:100]!r}")
        nonce = found["nonce"]
        # Kafka's own client repeats "n,," even if it sent an authorization id.
        if nonce != self._nonce or header not in (self._header, b"n,,"):
            doubled = nonce == self._client_nonce + self._nonce
            return Failure(
                _DOUBLED_NONCE if doubled else "the final message of SCRAM does not repeat the nonce and header"
            )
        return Success(self._user, b"v=" + _encode(hmac.digest(credential.server_key, signed, digest)).encode())

    def _unknown_user(self, user: str) -> ScramCredential:
        """Return a credential for an unknown user; no password derives a stored key that is a hash of our secret."""
        salt = hmac.digest(self._secret, b"salt" + user.encode(), "sha512")[:SALT_BYTES]
        key = hmac.digest(self._secret, b"key" + user.encode(), self._mechanism.digest)
        return ScramCredential(salt, key, key, ITERATIONS_MIN)


def _unescape(text: str) -> str | None:
    """Decode =2C to a comma and =3D to an equals sign; return None for any other use of `=`."""
    parts = re.split(r"(=2C|=3D)", text)
    if any("=" in part for part in parts[::2]):
        return None
    return "".join({"=2C": ",", "=3D": "="}.get(part, part) for part in parts)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
