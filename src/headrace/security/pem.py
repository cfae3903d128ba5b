"""PEM texts as OpenSSL wants them: in a properties file their lines may have become one."""

from __future__ import annotations

import re

_LINE = 64
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def pem_blocks(text: str) -> str:
    """Only the blocks, each with lines of the right length; empty if there is none."""
    blocks = []
    for label, body in _BLOCK.findall(text):
        if ":" not in body:  # without the headers of the old way to encrypt, which must stay as they are
            joined = "".join(body.split())
            body = "\n" + "\n".join(joined[at : at + _LINE] for at in range(0, len(joined), _LINE)) + "\n"
        blocks.append(f"-----BEGIN {label}-----{body}-----END {label}-----\n")
    return "".join(blocks)
