"""`headrace format`: data directories before the first start."""

from __future__ import annotations

import random
from pathlib import Path

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigError
from headrace.base.ids import uuid_from_text
from headrace.node.formatting import format_log_dirs, new_cluster_id
from headrace.node.settings import read_settings
from headrace.security.scram_arguments import parse_scram_argument
from headrace.storage.disk import DiskFiles
from headrace.storage.log_dirs import close_log_dirs, open_log_dirs


def run(
    config: Path | None,
    overrides: list[str],
    cluster_id: str | None,
    ignore_formatted: bool,
    scram: list[str],
) -> None:
    settings = read_settings(config, overrides)
    chance = random.SystemRandom()
    users = [parse_scram_argument(text, chance) for text in scram]
    if cluster_id is not None:
        try:
            uuid_from_text(cluster_id)
        except ValueError as error:
            raise ConfigError(f"--cluster-id: {error}") from error
    log_dirs = open_log_dirs(DiskFiles(), settings.log_dirs, node_id=settings.node_id, cluster_id=cluster_id)
    try:
        formatted = [log_dir for log_dir in log_dirs if log_dir.meta is not None]
        if formatted and users:
            raise ConfigError(
                f"--add-scram: {formatted[0].path} is formatted already; change users of a running cluster"
            )
        if formatted and not ignore_formatted:
            raise ConfigError(f"{formatted[0].path} is formatted already (--ignore-formatted leaves it alone)")
        known = next((log_dir.meta.cluster_id for log_dir in formatted if log_dir.meta is not None), None)
        chosen = cluster_id or known or new_cluster_id(chance)
        format_log_dirs(
            log_dirs, settings.metadata_dir, settings.node_id, chosen, SystemClock().now_ms(), chance, users
        )
    finally:
        close_log_dirs(log_dirs)
    print(f"formatted {', '.join(settings.log_dirs)} for node {settings.node_id} of cluster {chosen}")
