"""Feature levels of a new cluster by Kafka release, which `format` writes for the first controller.

A release determines the level of metadata.version, which determines the default levels of all other features. Each feature can also be
chosen separately.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.base.errors import ConfigError
from headrace.metadata.records import ELR_LEVEL, METADATA_VERSION_MAX, METADATA_VERSION_MIN

METADATA, ELR, GROUP = "metadata.version", "eligible.leader.replicas.version", "group.version"
KRAFT, SHARE, STREAMS, TRANSACTION = "kraft.version", "share.version", "streams.version", "transaction.version"

# Supported levels. Share and streams groups are not implemented yet, but a directory written by Kafka has their levels: these are kept
# without effect.
SUPPORTED_FEATURES = {
    METADATA: (METADATA_VERSION_MIN, METADATA_VERSION_MAX),
    ELR: (0, 1),
    GROUP: (0, 1),
    KRAFT: (0, 1),
    SHARE: (0, 1),
    STREAMS: (0, 1),
    TRANSACTION: (0, 2),
}
_RELEASES = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2",
    "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0",
    "4.2-IV1", "4.3-IV0",
)  # fmt: skip
RELEASE_LEVELS = {name: level for level, name in enumerate(_RELEASES, METADATA_VERSION_MIN)}
assert RELEASE_LEVELS[_RELEASES[-1]] == METADATA_VERSION_MAX
SCRAM_LEVEL = RELEASE_LEVELS["3.5-IV2"]
DYNAMIC_QUORUM_LEVEL = RELEASE_LEVELS["3.9-IV0"]
# Feature -> pairs of a metadata.version level and the feature's default level from there on.
_DEFAULTS = {
    ELR: ((RELEASE_LEVELS["4.1-IV0"], 1),),
    GROUP: ((RELEASE_LEVELS["4.0-IV0"], 1),),
    TRANSACTION: ((RELEASE_LEVELS["4.0-IV2"], 2),),
}
_NOT_SERVED = {
    SHARE: "this version serves no share groups",
    STREAMS: "this version serves no streams groups",
}


def release_level(text: str) -> int:
    """Return the level of metadata.version for a release. Raise ConfigError if the release is unknown.

    "4.3" and "4.3.1" mean the newest level of 4.3, "4.0-IV2" exactly that level.
    """
    release = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", text)
    names = [name for name in RELEASE_LEVELS if name == text or (release and name.startswith(f"{release[1]}-"))]
    if not names:
        raise ConfigError(f"--release-version {text}: unknown; supported are {', '.join(RELEASE_LEVELS)}")
    return RELEASE_LEVELS[names[-1]]


def release_name(level: int) -> str:
    return _RELEASES[level - METADATA_VERSION_MIN]


def feature_levels(release: str | None = None, chosen: Sequence[str] = ()) -> dict[str, int]:
    """Return the levels above 0 of a new cluster. Raise ConfigError if a choice is invalid.

    `chosen` are individual features as NAME=LEVEL.
    """
    given = dict(_feature(text) for text in chosen)
    if release is not None and METADATA in given:
        raise ConfigError(f"--feature {METADATA}: --release-version chooses its level; give only one of them")
    metadata = given.get(METADATA, METADATA_VERSION_MAX if release is None else release_level(release))
    levels = {METADATA: metadata}
    for name, since in _DEFAULTS.items():
        levels[name] = max((level for low, level in since if low <= metadata), default=0)
    levels |= given
    if levels[ELR] and metadata < ELR_LEVEL:
        raise ConfigError(
            f"--feature {ELR}={levels[ELR]} needs {METADATA} {release_name(ELR_LEVEL)} or newer, not {release_name(metadata)}"
        )
    return {name: level for name, level in levels.items() if level}


def _feature(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    name = name.strip()
    if not equals or not re.fullmatch(r"-?\d{1,5}", number.strip()):
        raise ConfigError(f"--feature {text!r}: expected NAME=LEVEL, for example {TRANSACTION}=2")
    if name not in SUPPORTED_FEATURES:
        raise ConfigError(f"--feature {name}: unknown; supported are {', '.join(SUPPORTED_FEATURES)}")
    (low, high), level = SUPPORTED_FEATURES[name], int(number)
    if not low <= level <= high:
        raise ConfigError(f"--feature {name}={level}: the level must be from {low} to {high}")
    if level and name in _NOT_SERVED:
        raise ConfigError(f"--feature {name}={level}: {_NOT_SERVED[name]}, so the level must be 0")
    return name, level
