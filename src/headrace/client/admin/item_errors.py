"""Errors of calls that handle several items at once."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.errors import KafkaError
from headrace.client.consumer.fetching import known_code


class ItemsFailed(KafkaError):
    """Some items of a call failed, and all others succeeded.

    `failures` maps each failed item to its error; `code` is that of the first.
    """

    def __init__(self, failures: Mapping[object, KafkaError]) -> None:
        first = next(iter(failures.values()))
        super().__init__(first.code, "; ".join(_item_message(what, error, first) for what, error in failures.items()))
        self.failures = dict(failures)


def _item_message(what: object, error: KafkaError, first: KafkaError) -> str:
    code = "" if error.code is first.code else f"{error.code.name}: "
    return f"{code}{error.message}" if str(what) in error.message else f"{what}: {code}{error.message}".rstrip(": ")


def refusal(code: int, message: str | None, what: object) -> KafkaError | None:
    return None if code == 0 else KafkaError(known_code(code), message or str(what))
