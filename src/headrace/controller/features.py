"""UpdateFeatures, all or nothing: the controller and all brokers must support a level; downgrades must not lose metadata."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.context import ELR_FEATURE, ControllerContext, Tx
from headrace.controller.controllers import other_controllers
from headrace.metadata.image import BROKER_CONFIG
from headrace.metadata.records import ELR_LEVEL
from headrace.metadata.state import KRAFT_VERSION, METADATA_VERSION
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord, FeatureLevelRecord
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
# Levels of metadata.version that added something to the records which a lower level would lose.
_CHANGING_LEVELS = (7, 8, 11, 13, 14, 15, 17, 23, 30)
_MIN_ISR = "min.insync.replicas"


def update(context: ControllerContext, request: UpdateFeaturesRequest, now_ms: int, tx: Tx) -> None:
    updates = {requested.feature: requested for requested in request.feature_updates}
    try:
        levels = context.features() | {name: requested.max_version_level for name, requested in updates.items()}
        records = [
            record for requested in updates.values() if (record := _update(context, requested, levels)) is not None
        ]
    except KafkaError as error:
        raise KafkaError(
            error.code,
            f"The update failed for all features since the following feature had an error: {error.message}",
        ) from error
    if not request.validate_only:
        if any(record.name == ELR_FEATURE and record.feature_level for record in records):
            make_elr_safe(context, tx)
        for record in records:
            tx.emit(record)
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    results = [result(feature=name, error_message="NONE") for name in updates]
    tx.reply(tx.ticket, UpdateFeaturesResponse(error_message=None, results=results))


def _update(
    context: ControllerContext, requested: UpdateFeaturesRequest.FeatureUpdateKey, levels: dict[str, int]
) -> FeatureLevelRecord | None:
    name, level = requested.feature, requested.max_version_level
    current = context.kraft_version() if name == KRAFT_VERSION else context.state.features.get(name) or 0
    if requested.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    _check_supported(context, name, level)
    if level < current and requested.upgrade_type == UPGRADE:
        raise _invalid(
            name,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        )
    if level > current and requested.upgrade_type != UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION:
        _check_metadata_downgrade(current, level, unsafe=requested.upgrade_type == UNSAFE_DOWNGRADE)
    elif name == KRAFT_VERSION:
        if level < current:
            raise _invalid(name, level, "Can't downgrade the version of this feature.")
        return None  # the quorum itself has the record of its level
    elif name not in context.supported_features:
        raise _invalid(name, level, f"Feature {name} not found.")
    elif name == ELR_FEATURE and level and levels.get(METADATA_VERSION, 0) < ELR_LEVEL:
        raise _invalid(
            name,
            level,
            f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level {ELR_LEVEL}",
        )
    return FeatureLevelRecord(name=name, feature_level=level)


def _check_supported(context: ControllerContext, name: str, level: int) -> None:
    supporters = [(f"Local controller {context.node_id}", context.supported_features.get(name, (0, 0)))]
    supporters += [(f"Controller {number}", levels) for number, levels in other_controllers(context, name)]
    supporters += [(f"Broker {broker.id}", broker.features.get(name, (0, 0))) for _, broker in context.brokers()]
    for supporter, (low, high) in supporters:
        if not low <= level <= high:
            why = f"only supports versions {low}-{high}" if (low, high) != (0, 0) else "does not support this feature."
            raise _invalid(name, level, f"{supporter} {why}")


def _check_metadata_downgrade(current: int, level: int, *, unsafe: bool) -> None:
    if any(level < changing <= current for changing in _CHANGING_LEVELS):
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if unsafe
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported {METADATA_VERSION} downgrade from {current} to {level}. {why}",
        )


def make_elr_safe(context: ControllerContext, tx: Tx) -> None:
    """Set min.insync.replicas for the cluster and remove it from each broker, so that all controllers agree (KIP-966)."""
    if _MIN_ISR not in context.state.config(BROKER_CONFIG, ""):
        text = context.static.get(_MIN_ISR, "1")
        tx.emit(ConfigRecord(resource_type=BROKER_CONFIG, resource_name="", name=_MIN_ISR, value=text))
    for (kind, name), values in list(context.state.configs.items()):
        if kind == BROKER_CONFIG and name and _MIN_ISR in values:
            tx.emit(ConfigRecord(resource_type=BROKER_CONFIG, resource_name=name, name=_MIN_ISR, value=None))


def _invalid(name: str, level: int, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {why}")
