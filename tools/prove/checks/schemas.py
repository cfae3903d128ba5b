"""Headrace's declarations of Kafka's messages, compared with the schemas in Kafka's jars."""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from pathlib import Path

from testkit import kafka_peer as peers

from tools.prove.commands import run
from tools.prove.registry import check, require

TEST_S_MAX = 600.0
SCHEMA = re.compile(r"(?:common/)?(?:message|metadata)/(\w+\.json)")
# Kafka Streams' own client protocol, which brokers never see.
FOREIGN = {"SubscriptionInfoData.json"}


@check(
    "schemas-equal-kafkas",
    "Every message and stored record is declared as in the schemas of Kafka's jars, field by field",
)
def schemas_equal_kafkas() -> str:
    require(peers.available())
    with tempfile.TemporaryDirectory(prefix="headrace-schemas-") as directory:
        count = _extract(Path(directory, "messages"))
        done = run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "tests/protocol/test_protocol_schemas.py"],
            timeout_s=TEST_S_MAX,
            environment={"HEADRACE_SCHEMAS": directory, "CI": "true"},
        )
    summary = done.stdout.strip().splitlines()[-1]
    assert "skipped" not in summary, f"the schemas were not compared: {summary}"
    return f"{count} schemas of Kafka {peers.VERSION}; {summary}"


def _extract(target: Path) -> int:
    """Extract the schemas from Kafka's jars and return their number."""
    target.mkdir(parents=True)
    count = 0
    for path in sorted(peers.libraries().glob("kafka-*.jar")):
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                found = SCHEMA.fullmatch(name)
                if found and found[1] not in FOREIGN:
                    (target / f"{path.stem}-{found[1]}").write_bytes(jar.read(name))
                    count += 1
    return count
