"""Translation of cipher suite names from the standard (and Java's) form to OpenSSL's.

TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, for example, is ECDHE-RSA-AES256-GCM-SHA384 in OpenSSL.
"""

from __future__ import annotations

# The suites of TLS 1.3 by their standard names, which OpenSSL uses too.
TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_CIPHERS = {
    "AES_128_GCM": "AES128-GCM",
    "AES_256_GCM": "AES256-GCM",
    "AES_128_CCM": "AES128-CCM",
    "AES_256_CCM": "AES256-CCM",
    "AES_128_CBC": "AES128",
    "AES_256_CBC": "AES256",
    "CHACHA20_POLY1305": "CHACHA20-POLY1305",
}
_WITHOUT_HASH = ("CHACHA20_POLY1305", "AES_128_CCM", "AES_256_CCM")


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite, unchanged if it is one already. Raise ValueError if it is unknown."""
    if not suite.startswith("TLS_"):
        return suite
    exchange, with_, rest = suite.removeprefix("TLS_").partition("_WITH_")
    for name, short in _CIPHERS.items():
        if with_ and rest.startswith(name):
            digest = rest.removeprefix(name).strip("_")
            parts = ["" if exchange == "RSA" else exchange.replace("_", "-"), short]
            if name not in _WITHOUT_HASH:
                parts.append(digest)
            return "-".join(part for part in parts if part)
    raise ValueError(f"{suite} is no cipher suite that is known here")
