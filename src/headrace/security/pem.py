"""Restores the line breaks that OpenSSL requires in PEM texts; in a properties file they may be on one line."""

from __future__ import annotations

import re

_LINE = 64
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def pem_blocks(text: str) -> str:
    """Return only the PEM blocks, with lines of the right length; empty if there are none."""
    blocks = []
    for label, body in _BLOCK.findall(text):
        if ":" not in body:  # headers of the legacy encryption format must stay unchanged
            joined = "".join(body.split())
            body = "\n" + "\n".join(joined[at : at + _LINE] for at in range(0, len(joined), _LINE)) + "\n"
        blocks.append(f"-----BEGIN {label}-----{body}-----END {label}-----\n")
    return "".join(blocks)
