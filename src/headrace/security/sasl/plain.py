"""PLAIN (RFC 4616): one token with user name and password, for encrypted connections."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from headrace.security.sasl.exchange import Failure, Step, Success

MECHANISM = "PLAIN"
PASSWORD_BYTES_MAX = 65_536
INVALID = "Authentication failed: Invalid username or password"


class PlainExchange:
    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def step(self, token: bytes) -> Step:
        parts = token.split(b"\0")
        if len(parts) != 3:
            text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            return Failure(text, text)
        try:
            authorization_id, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            return Failure("a PLAIN token must be UTF-8")
        if not user or not password:
            return Failure("a PLAIN token without a user name or password")
        if len(password) > PASSWORD_BYTES_MAX:
            return Failure(f"a password of more than {PASSWORD_BYTES_MAX} characters")
        known = self._passwords.get(user)
        # Hashes have equal lengths, and unknown users are compared too, so that timing reveals neither length nor existence.
        right = hmac.compare_digest(_hash(password), _hash(known if known is not None else ""))
        if known is None or not right:
            return Failure(f"wrong user name or password for {user[:100]!r}", INVALID)
        if authorization_id and authorization_id != user:
            return Failure(
                "the authorization id differs from the user name",
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        return Success(user)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
