"""The loggers of this node as a config resource: list them with their levels and change a level at runtime.

Kafka's and Python's levels differ only in name: TRACE is below DEBUG, FATAL is CRITICAL.
"""

from __future__ import annotations

import logging

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.configs import APPEND, DELETE, SET, SUBTRACT

ROOT = "root"
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_VERBS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}


def loggers() -> dict[str, str]:
    """Return the effective level of each logger by name."""
    found = {ROOT: _level_name(logging.getLogger())}
    for name in sorted(logging.Logger.manager.loggerDict):
        logger = logging.Logger.manager.loggerDict[name]
        if isinstance(logger, logging.Logger):
            found[name] = _level_name(logger)
    return found


def change_level(name: str, operation: int, value: str | None, *, apply: bool) -> None:
    """Set or delete the level of a logger; only validate it if `apply` is false.

    Raise KafkaError, with Kafka's messages, if the operation, the logger or the level is invalid.
    """
    if operation in _VERBS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{_VERBS[operation]} operation is not allowed for the BROKER_LOGGER resource"
        )
    if operation not in (SET, DELETE):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource",
        )
    if name not in loggers():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == DELETE and name == ROOT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    if operation == SET and (value or "") not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )
    if apply:
        logger = logging.getLogger() if name == ROOT else logging.getLogger(name)
        logger.setLevel(logging.NOTSET if operation == DELETE else LEVELS[value or ""])


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((name for name, number in reversed(LEVELS.items()) if number <= level), "TRACE")
