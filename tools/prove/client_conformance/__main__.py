"""Runs all acts or those named, on both servers or one: `python -m tools.prove.client_conformance [ACT …] [SERVER]`.

SERVER is `Headrace` or `Kafka`.
"""

from __future__ import annotations

import sys

from tools.prove.client_conformance.suite import SERVERS, play

if __name__ == "__main__":
    chosen = [one for one in SERVERS if one.split()[0] in sys.argv[1:]]
    play(print, [one for one in sys.argv[1:] if one not in ("Headrace", "Kafka")], chosen)
