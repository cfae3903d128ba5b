"""A client of Confluent-compatible schema registries: gets schemas by id and by subject, and caches them.

Time and size of a response are limited. An unknown id is the record's fault (`UnknownSchema`), all else the registry's (`RegistryError`).
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.client.retry import Retry
from headrace.pipelines.failures import SourceError
from headrace.pipelines.schemas.columns import SCHEMA_BYTES_MAX, BadRecord, shortened
from headrace.pipelines.schemas.options import RegistrySettings

ANSWER_BYTES_MAX = 2 * SCHEMA_BYTES_MAX  # JSON makes the text longer
CHUNK_BYTES = 64 * 1024
SCHEMAS_MAX = 1000  # number of cached schemas
CLIENTS_MAX = 8
REFERENCES_MAX = 200  # references of a schema, including indirect ones
UNKNOWN_S = 30.0  # time for which an unknown id is not requested again
_TRANSIENT = (429, 500, 502, 503, 504)
_ACCEPTED = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryError(SourceError):
    """The registry cannot be reached, or its response cannot be used."""


class UnknownSchema(BadRecord):
    pass


class Registered(Struct, frozen=True):
    kind: str  # AVRO, JSON or PROTOBUF
    text: str
    references: tuple[tuple[str, str], ...] = ()  # name and text of all dependencies, each AFTER its own dependencies


class RegistryClient:
    def __init__(self, settings: RegistrySettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        self._known: dict[int, Registered] = {}
        self._unknown: dict[int, float] = {}
        self._opener = _opener(settings.ca_location)
        self._headers = {"Accept": _ACCEPTED}
        if settings.user_info is not None:
            self._headers["Authorization"] = "Basic " + b64encode(settings.user_info.encode()).decode()

    def by_id(self, schema_id: int) -> Registered:
        """Return the schema with this id; raise UnknownSchema if there is none."""
        found = self._known.get(schema_id)
        if found is None:
            if self._now() < self._unknown.get(schema_id, 0.0):
                raise UnknownSchema(f"the registry has no schema {schema_id}")
            try:
                found = self._registered(f"/schemas/ids/{schema_id}", f"schema {schema_id}", "")
            except UnknownSchema:
                _keep(self._unknown, schema_id, self._now() + UNKNOWN_S)
                raise
            _keep(self._known, schema_id, found)
        return found

    def latest(self, subject: str, *, serialized: bool = False) -> Registered:
        """Return the latest schema of a subject; `serialized` requests Protobuf as base64 descriptors, if supported."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            return self._registered(path, f"subject {subject}", "?format=serialized" if serialized else "")
        except UnknownSchema as error:
            raise RegistryError(f"{error} (at {', '.join(self._settings.urls)})") from None

    def _registered(self, path: str, what: str, query: str) -> Registered:
        document = self._get(path + query, what)
        references: dict[str, str] = {}
        self._collect(document, what, query, references, set())
        return Registered(_kind(document), _text(document, what), tuple(references.items()))

    def _collect(
        self, document: dict[str, Any], what: str, query: str, into: dict[str, str], under_way: set[str]
    ) -> None:
        given = document.get("references") or []
        if not isinstance(given, list):
            raise RegistryError(f"the registry's response for {what} has references that are not a list")
        for one in given:
            try:
                name, subject, version = str(one["name"]), str(one["subject"]), int(one["version"])
            except (KeyError, TypeError, ValueError):
                raise RegistryError(
                    f"the registry's response for {what} has a reference without name, subject or version"
                ) from None
            if name in into or name in under_way:
                continue
            if len(into) + len(under_way) >= REFERENCES_MAX:
                raise RegistryError(f"{what} refers to more than {REFERENCES_MAX} others")
            under_way.add(name)
            further = f"version {version} of subject {subject}"
            try:
                found = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}{query}", further)
            except UnknownSchema as error:
                raise RegistryError(f"{what} refers to {name}, but {error}") from None
            self._collect(found, further, query, into, under_way)
            under_way.discard(name)
            into[name] = _text(found, further)

    def _get(self, path: str, what: str) -> dict[str, Any]:
        """Request from each URL in turn, repeatedly until the timeout."""
        deadline = self._now() + self._settings.timeout_s
        retry = Retry(timeout_s=self._settings.timeout_s, now=self._now)
        while True:
            for url in self._settings.urls:
                try:
                    return self._get_once(url + path, max(retry.left_s, 0.001), deadline, what)
                except _Transient as error:
                    failure = RegistryError(f"the schema registry gave no response for {what}: {url}: {error}")
            time.sleep(retry.next_pause_s(failure))

    def _get_once(self, url: str, timeout_s: float, deadline: float, what: str) -> dict[str, Any]:
        try:
            with self._opener.open(Request(url, headers=self._headers), timeout=timeout_s) as response:
                data = self._read(response, deadline, what)
        except HTTPError as error:
            with error:
                if error.code == 404:
                    raise UnknownSchema(f"the registry has no {what}") from None
                if error.code in _TRANSIENT:
                    raise _Transient(f"status {error.code}") from None
                hint = ": set schema.registry.basic.auth.user.info" if error.code == 401 else ""
                raise RegistryError(
                    f"the schema registry refused to give {what}, with status {error.code}{hint}"
                ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise RegistryError(f"the schema registry cannot be trusted: {reason.verify_message}") from None
            raise _Transient(shortened(reason) or type(error).__name__) from None
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise RegistryError(f"the schema registry's response for {what} is not a JSON object")
        return document

    def _read(self, response: Any, deadline: float, what: str) -> bytes:
        data = bytearray()
        while chunk := response.read1(CHUNK_BYTES):
            data += chunk
            if len(data) > ANSWER_BYTES_MAX:
                raise RegistryError(
                    f"the schema registry's response for {what} is longer than {ANSWER_BYTES_MAX} bytes"
                )
            if self._now() > deadline:
                raise _Transient("it is too slow")
        return bytes(data)


class _Transient(Exception):
    pass


def _opener(ca_location: str | None) -> OpenerDirector:
    """Return an opener for HTTP only, without redirects, so that the password goes to no other host."""
    try:
        context = ssl.create_default_context(cafile=ca_location)
    except OSError as error:
        raise ConfigError(f"schema.registry.ssl.ca.location={ca_location}: {error}") from None
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(context=context),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _keep(into: dict[int, Any], key: int, value: Any) -> None:
    if len(into) >= SCHEMAS_MAX:
        del into[next(iter(into))]
    into[key] = value


def _text(document: dict[str, Any], what: str) -> str:
    text = document.get("schema")
    if not isinstance(text, str):
        raise RegistryError(f"the schema registry's response for {what} has no schema")
    return text


def _kind(document: dict[str, Any]) -> str:
    return str(document.get("schemaType") or "AVRO").upper()


@lru_cache(maxsize=CLIENTS_MAX)
def registry(settings: RegistrySettings) -> RegistryClient:
    """Return this process's client, so that successive tasks share its cache."""
    return RegistryClient(settings)
