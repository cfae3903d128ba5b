"""A certificate for loopback, made by openssl: key and chain in one PEM file, the trusted certificate in another."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from headrace.testing.processes import LOOPBACK
from tools.prove.registry import NotRun


class Certificate(NamedTuple):
    store: Path  # certificate and private key
    trusted: Path  # certificate alone


def make_certificate(directory: Path) -> Certificate:
    """Write `store.pem` and `trusted.pem`. Raise NotRun without openssl."""
    if shutil.which("openssl") is None:
        raise NotRun("openssl, which makes the certificates, is not installed")
    certificate = Certificate(directory / "store.pem", directory / "trusted.pem")
    key = directory / "key.pem"
    done = subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-keyout", str(key), "-out", str(certificate.trusted), "-subj", "/CN=localhost",
            "-addext", f"subjectAltName=DNS:localhost,IP:{LOOPBACK}",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    certificate.store.write_text(certificate.trusted.read_text() + key.read_text())
    return certificate
