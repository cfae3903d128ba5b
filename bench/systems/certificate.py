"""One self-signed P-256 certificate for both servers, in a PEM file that both accept as a key store."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.testing.processes import LOOPBACK

OPENSSL_S_MAX = 60.0


@dataclass(frozen=True)
class Certificate:
    public: Path  # the certificate that clients trust
    keystore: Path

    def settings(self) -> dict[str, str]:
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.keystore)}


def make_certificate(directory: Path) -> Certificate | None:
    """Create the certificate and key store, or return None without openssl."""
    if shutil.which("openssl") is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    public, key, keystore = (directory.absolute() / name for name in ("public.pem", "key.pem", "keystore.pem"))
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-addext", f"subjectAltName=DNS:localhost,IP:{LOOPBACK}", "-keyout", str(key),
            "-out", str(public),
        ],
        check=True, capture_output=True, timeout=OPENSSL_S_MAX,
    )  # fmt: skip
    keystore.write_text(public.read_text() + key.read_text())
    return Certificate(public, keystore)
