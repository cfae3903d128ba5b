"""Spark's own Kafka connector, for comparison: its jars from Maven Central, for `spark.jars`.

Maven Central has no complete set of one version. These versions together read and write, batch and streaming, under PySpark 4.2 and
4.3.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from testkit.kafka_peer import Artifact, fetched

VERSION = "4.2.0"
_ARTIFACTS: tuple[Artifact, ...] = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)


def _folder() -> Path:
    given = os.environ.get("HEADRACE_SPARK_CONNECTOR")
    return Path(given) if given else Path("~/.cache/headrace").expanduser() / f"spark-connector-{VERSION}"


@cache
def connector_missing() -> str | None:
    """Return None if the jars are present, fetching them on first use; otherwise return the reason."""
    return fetched(f"Spark's Kafka connector {VERSION}", _folder(), _ARTIFACTS, alone=True)


def connector_jars() -> list[Path]:
    return sorted(_folder().glob("*.jar"))
