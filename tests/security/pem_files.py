"""Test keys and certificates made by openssl: an authority, servers and clients, valid and expired."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates, and it is not installed")
_EXTENSIONS = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n"


def openssl(*arguments: Any, text: Any = None) -> None:
    subprocess.run([OPENSSL, *map(str, arguments)], input=text, text=True, capture_output=True, check=True)


class Authority:
    """Issues certificates into a directory; `store` is a PEM file with key and chain, like Kafka's PEM keystores."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name
        self.certificate = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 30,
            "-keyout", self._key, "-out", self.certificate, "-subj", f"/CN={name}",
        )  # fmt: skip

    def issue(self, name: str, subject: str, *, days: int = 30, password: str | None = None) -> tuple[Path, Path, Path]:
        """Return the paths of the key, the certificate and the store with both; with negative `days` it has already expired."""
        key, request, certificate, store = (self._directory / f"{name}.{kind}" for kind in ("key", "csr", "crt", "pem"))
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(_EXTENSIONS)
        openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
            "-out", request, "-subj", subject, "-utf8", "-multivalue-rdn",
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-days", days, "-out", certificate, "-extfile", extensions,
        )  # fmt: skip
        if password is not None:
            encrypted = self._directory / f"{name}.encrypted"
            openssl("pkcs8", "-topk8", "-in", key, "-out", encrypted, "-passout", f"pass:{password}")
            key = encrypted
        store.write_text(certificate.read_text() + key.read_text())
        return key, certificate, store
