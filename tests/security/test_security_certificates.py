"""Names in certificates, formatted as Java formats them, and invalid certificates."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.security.pem_files import Authority, needs_openssl

from headrace.security.certificates import BadCertificate, certificates_in, read_certificate

# Results of java.security's X500Principal.getName() for the same certificates (OpenJDK 17).
JAVA_NAMES = {
    "/C=DE/ST=Bayern/L=München/O=Foo, Inc./OU=sales/CN=alice": "CN=alice,OU=sales,O=Foo\\, Inc.,L=München,ST=Bayern,C=DE",
    "/DC=org/DC=example/UID=u1/CN= lead and trail ": "CN=\\ lead and trail\\ ,UID=u1,DC=example,DC=org",
    '/emailAddress=x@y.z/serialNumber=42/title=Dr/CN=#hash=eq;semi<lt>"q"\\\\bs': (
        'CN=\\#hash\\=eq\\;semi\\<lt\\>\\"q\\"\\\\bs,2.5.4.12=#0c024472,2.5.4.5=#13023432,'
        "1.2.840.113549.1.9.1=#16057840792e7a"
    ),
    "/CN=one+OU=two/O=x": "O=x,CN=one+OU=two",
    "/street=Main 1/postalCode=1234/CN=日本": "CN=日本,2.5.4.17=#0c0431323334,STREET=Main 1",
}


@needs_openssl
def test_subject_names_are_formatted_as_in_java(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for number, (subject, name) in enumerate(JAVA_NAMES.items()):
        _, certificate, store = authority.issue(f"c{number}", subject)
        (der,) = certificates_in(store.read_text())
        assert der == ssl.PEM_cert_to_DER_cert(certificate.read_text())
        found = read_certificate(der)
        assert found.subject == name
        assert 29 * 86_400_000 < found.not_after_ms - found.not_before_ms < 31 * 86_400_000


@needs_openssl
def test_truncated_and_oversized_bytes_raise_bad_certificate(tmp_path: Path) -> None:
    (der,) = certificates_in(Authority(tmp_path).certificate.read_text())
    for end in range(0, len(der), 7):
        with pytest.raises(BadCertificate):
            read_certificate(der[:end])
    with pytest.raises(BadCertificate, match="at most"):
        read_certificate(bytes(100_000))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 199), st.integers(0, 255))
def test_random_bytes_parse_or_raise_bad_certificate(data: bytes, at: int, byte: int) -> None:
    data = bytes([0x30, min(len(data), 127)]) + data
    try:
        read_certificate(data[:at] + bytes([byte]) + data[at:])
    except BadCertificate as error:
        assert str(error)
