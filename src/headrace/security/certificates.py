"""Reads the subject and the validity period from the DER bytes of a certificate (RFC 5280).

Names are printed like Java's X500Principal (RFC 2253). That is the principal's name in Kafka, so Kafka's ACLs apply unchanged.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from headrace.base.errors import HeadraceError

DER_BYTES_MAX = 65_536
_SEQUENCE, _SET, _OID = 0x30, 0x31, 0x06
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_VERSION = 0xA0  # explicit tag, absent only in version 1 certificates
# The attribute types that RFC 2253 names; all others are printed as numbers, with their values in hexadecimal.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# UTF8, Printable, T61, IA5, General, Universal and BMP strings; Java reads the bytes of all of them as UTF-8.
_STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
_ESCAPED = frozenset(',=+<>#;"\\')
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\s*([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")


class BadCertificate(HeadraceError):
    """Bytes that are not an X.509 certificate."""


class Certificate(NamedTuple):
    subject: str
    not_before_ms: int
    not_after_ms: int


def read_certificate(der: bytes) -> Certificate:
    if len(der) > DER_BYTES_MAX:
        raise BadCertificate(f"a certificate of {len(der)} bytes; at most {DER_BYTES_MAX} are read")
    try:
        fields = _children(_only(_children(_expect(der, _SEQUENCE)), 0)[1])
        if fields[0][0] == _VERSION:
            fields = fields[1:]
        # Serial number, signature algorithm, issuer, validity, subject, …
        begin, end = _children(fields[3][1])
        return Certificate(_name(fields[4][1]), _time(*begin), _time(*end))
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        raise BadCertificate(f"this is no X.509 certificate: {error}") from error


def certificates_in(pem: str) -> list[bytes]:
    """Return the DER bytes of each certificate in a PEM text, in order. Raise BadCertificate if one is not base64."""
    try:
        return [base64.b64decode("".join(found.split()), validate=True) for found in _PEM.findall(pem)]
    except binascii.Error as error:
        raise BadCertificate(f"a certificate is not in base64: {error}") from error


# --- DER


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the tag, the contents and all bytes of each element. Raise ValueError if the DER is malformed."""
    at = 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        if length > 127:
            size = length & 127
            if not 0 < size <= 3:
                raise ValueError("a length of a kind that DER does not have")
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("the bytes end too early")
        yield tag, data[at : at + length], data[start : at + length]
        at += length


def _children(data: bytes) -> list[tuple[int, bytes]]:
    return [(tag, contents) for tag, contents, _ in _elements(data)]


def _expect(data: bytes, tag: int) -> bytes:
    found, contents = _children(data)[0]
    if found != tag:
        raise ValueError(f"expected tag {tag:#x}, found {found:#x}")
    return contents


def _only(children: list[tuple[int, bytes]], index: int) -> tuple[int, bytes]:
    if children[index][0] != _SEQUENCE:
        raise ValueError("expected a sequence")
    return children[index]


def _time(tag: int, text: bytes) -> int:
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"expected a time, found tag {tag:#x}")
    digits = text.decode("ascii")
    if tag == _UTC_TIME:
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    moment = datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


# --- names


def _name(data: bytes) -> str:
    """Return the name with its parts in reverse order, as RFC 2253 requires."""
    parts = []
    for tag, contents in _children(data):
        if tag != _SET:
            raise ValueError("a name is made of sets")
        parts.append("+".join(_attribute(value) for _, value in _children(contents)))
    return ",".join(reversed(parts))


def _attribute(data: bytes) -> str:
    (oid_tag, oid, _), (tag, value, whole) = _elements(data)
    if oid_tag != _OID:
        raise ValueError("an attribute of a name starts with its type")
    number = _oid(oid)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _STRINGS:
        return f"{keyword or number}=#{whole.hex()}"
    return f"{keyword}={_escape(value.decode(errors='replace'))}"


def _oid(data: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in data:
        value = value << 7 | byte & 127
        if byte < 128:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - first * 40, *numbers[1:])))


def _escape(text: str) -> str:
    """Escape special characters, and spaces at both ends."""
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    trail = len(text) - lead - len(inner)
    escaped = "".join(f"\\{c}" if c in _ESCAPED else "\\00" if c == "\0" else c for c in inner)
    return "\\ " * lead + escaped + "\\ " * trail
