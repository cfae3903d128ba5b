"""Runner of all scenarios or those named, on both servers or one.

`python -m tools.prove.client_conformance [SCENARIO …] [SERVER]`; SERVER is `Headrace` or `Kafka`.
"""

from __future__ import annotations

import sys

from tools.prove.client_conformance.suite import SERVERS, run_suite

if __name__ == "__main__":
    chosen = [one for one in SERVERS if one.split()[0] in sys.argv[1:]]
    run_suite(print, [one for one in sys.argv[1:] if one not in ("Headrace", "Kafka")], chosen)
