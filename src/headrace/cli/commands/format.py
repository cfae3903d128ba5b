"""`headrace format`: formats the data directories before the first start."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigError
from headrace.base.ids import uuid_from_text
from headrace.cli.options import Config, SettingFlags, Strict, single_command
from headrace.node.configuration.settings import Settings, read_settings
from headrace.node.new_cluster.feature_levels import DYNAMIC_QUORUM_LEVEL, KRAFT, METADATA, feature_levels, release_name
from headrace.node.new_cluster.formatting import FirstMetadata, bootstrap_records, format_log_dirs, new_cluster_id
from headrace.node.new_cluster.initial_voters import parse_initial_controllers
from headrace.node.new_cluster.initial_voters import standalone as make_standalone
from headrace.raft.voters import VoterSet
from headrace.security.scram_arguments import ScramUser, parse_scram_argument
from headrace.storage.disk import DiskFiles
from headrace.storage.log_dirs import close_log_dirs, open_log_dirs

app = single_command()


class ClusterStart(NamedTuple):
    """How a new cluster starts: its id, feature levels, users and voters."""

    cluster_id: str | None  # None: the id in directories that are already formatted, or else a random one
    levels: Mapping[str, int]
    users: Sequence[ScramUser]
    first: FirstMetadata  # sets the levels, creates the users and has the voters


ClusterId = Annotated[
    str | None,
    typer.Option(
        "-t", "--cluster-id", help="Cluster id, 22 characters of URL-safe base64. Defaults to a new random id."
    ),
]
IgnoreFormatted = Annotated[
    bool, typer.Option("-g", "--ignore-formatted", help="Skip directories that are already formatted.")
]
ReleaseVersion = Annotated[
    str | None,
    typer.Option(
        "-r",
        "--release-version",
        help="Kafka release that determines the feature levels of the cluster. Defaults to the newest.",
    ),
]
Features = Annotated[
    list[str] | None,
    typer.Option("-f", "--feature", metavar="NAME=LEVEL", help="Level of one feature; may be repeated."),
]
ScramUsers = Annotated[
    list[str] | None,
    typer.Option(
        "-S",
        "--add-scram",
        metavar="SCRAM-SHA-256=[name=…,password=…]",
        help="SCRAM user to create with the cluster; may be repeated.",
    ),
]
Standalone = Annotated[
    bool, typer.Option("-s", "--standalone", help="Make this controller the only voter of a new dynamic quorum.")
]
InitialControllers = Annotated[
    str | None,
    typer.Option(
        "-I",
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY-ID,…",
        help="First voters of a new dynamic quorum; the same on each of them.",
    ),
]
NoInitialControllers = Annotated[
    bool, typer.Option("-N", "--no-initial-controllers", help="Format a controller that joins a dynamic quorum later.")
]


@app.command()
def format_(
    config: Config = None,
    flags: SettingFlags = None,
    strict: Strict = False,
    cluster_id: ClusterId = None,
    ignore_formatted: IgnoreFormatted = False,
    release_version: ReleaseVersion = None,
    feature: Features = None,
    add_scram: ScramUsers = None,
    standalone: Standalone = False,
    initial_controllers: InitialControllers = None,
    no_initial_controllers: NoInitialControllers = False,
) -> None:
    """Format the data directories of a node (`serve` formats empty ones on its first start)."""
    settings = read_settings(config, flags or [], os.environ, strict=strict)
    random_source = random.SystemRandom()
    levels = feature_levels(release_version, feature or [])
    wants_dynamic = levels.pop(KRAFT, 0) > 0  # the quorum itself has the record of this level
    users = [parse_scram_argument(text, random_source) for text in add_scram or []]
    voters = _first_voters(
        settings, VoterChoice(standalone, initial_controllers, no_initial_controllers), levels, random_source
    )
    if wants_dynamic and voters is None and not no_initial_controllers:
        raise ConfigError(f"--feature {KRAFT}=1 needs --standalone, --initial-controllers or --no-initial-controllers")
    start = ClusterStart(cluster_id, levels, users, FirstMetadata(bootstrap_records(levels, users), voters))
    _check_cluster_id(cluster_id)
    _format(settings, start, random_source, ignore_formatted=ignore_formatted)


class VoterChoice(NamedTuple):
    """The options that choose the first voters; at most one of them is given."""

    standalone: bool
    initial_controllers: str | None
    no_initial_controllers: bool


def _first_voters(
    settings: Settings, choice: VoterChoice, levels: Mapping[str, int], random_source: random.Random
) -> VoterSet | None:
    """Return the voters to write; None if controller.quorum.voters has them, or the node joins a quorum later."""
    given = sum(map(bool, choice))
    if given > 1:
        raise ConfigError("give only one of --standalone, --initial-controllers and --no-initial-controllers")
    if given and not settings.is_controller:
        raise ConfigError("process.roles: this node is no controller, so it has no place among the voters")
    if given and settings.quorum_voters:
        raise ConfigError(
            "controller.quorum.voters makes the quorum static: remove it, or the option that chooses the voters"
        )
    if not given:
        if settings.is_controller and not settings.quorum_voters and not settings.is_alone:
            raise ConfigError(
                "controller.quorum.voters is not set: give --standalone, --initial-controllers or --no-initial-controllers"
            )
        return (
            make_standalone(settings, random_source) if settings.bootstrap_controllers and settings.is_alone else None
        )
    if levels[METADATA] < DYNAMIC_QUORUM_LEVEL:
        raise ConfigError(
            f"a dynamic quorum needs {METADATA} {release_name(DYNAMIC_QUORUM_LEVEL)} or newer,"
            f" not {release_name(levels[METADATA])}"
        )
    if choice.initial_controllers is not None:
        return parse_initial_controllers(choice.initial_controllers, settings)
    return make_standalone(settings, random_source) if choice.standalone else None


def _check_cluster_id(cluster_id: str | None) -> None:
    if cluster_id is not None:
        try:
            uuid_from_text(cluster_id)
        except ValueError as error:
            raise ConfigError(f"--cluster-id: {error}") from error


def _format(settings: Settings, start: ClusterStart, random_source: random.Random, *, ignore_formatted: bool) -> None:
    log_dirs = open_log_dirs(DiskFiles(), settings.log_dirs, node_id=settings.node_id, cluster_id=start.cluster_id)
    try:
        formatted = [log_dir for log_dir in log_dirs if log_dir.meta is not None]
        if formatted and start.users:
            raise ConfigError(
                f"--add-scram: {formatted[0].path} is already formatted; use `headrace users add` on the running cluster"
            )
        if formatted and not ignore_formatted:
            raise ConfigError(f"{formatted[0].path} is already formatted (--ignore-formatted skips it)")
        known = next((log_dir.meta.cluster_id for log_dir in formatted if log_dir.meta is not None), None)
        cluster_id = start.cluster_id or known or new_cluster_id(random_source)
        now_ms = SystemClock().now_ms()
        format_log_dirs(
            log_dirs, settings.metadata_dir, settings.node_id, cluster_id, now_ms, random_source, start.first
        )
    finally:
        close_log_dirs(log_dirs)
    print(f"formatted {', '.join(settings.log_dirs)} for node {settings.node_id} of cluster {cluster_id}")
    if not formatted:
        print(f"metadata.version is {release_name(start.levels[METADATA])}")
