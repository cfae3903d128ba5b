"""The control interface of a driver: HTTP on loopback, for users who can read the token in its file in the runtime folder.

GET /status (JSON), GET /metrics (Prometheus; needs no token, as it exposes nothing confidential), POST /stop?pipeline=NAME.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from headrace.base.errors import ConfigError, HeadraceError
from headrace.pipelines.runner.runs import Run
from headrace.pipelines.runner.status import QueryStatus, from_json, metrics_of, to_json

LOOPBACK = "127.0.0.1"
TOKEN_HEADER = "Authorization"
REQUEST_S_MAX = 5.0
ANSWER_S_MAX = 10.0
ANSWER_BYTES_MAX = 16 << 20
NAMES_MAX = 1000
_JSON = "application/json"


class Control:
    """Serves requests one at a time, in a separate thread."""

    def __init__(
        self,
        status: Callable[[], Sequence[QueryStatus]],
        stop: Callable[[Collection[str] | None], None],
        token: str,
        port: int = 0,
    ) -> None:
        """Start the server; port 0 chooses a free port. Raise ConfigError if the port is in use."""

        class Handler(_Handler):
            control = self

        self.status, self.stop, self.token = status, stop, token
        try:
            self._server = HTTPServer((LOOPBACK, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {port} of {LOOPBACK} cannot be used for status and metrics: {error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace-control", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_S_MAX)


class _Handler(BaseHTTPRequestHandler):
    control: Control
    timeout = REQUEST_S_MAX
    server_version = "headrace"
    sys_version = ""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            from headrace.observe.exposition import CONTENT_TYPE, expose

            self._answer(HTTPStatus.OK, CONTENT_TYPE, asyncio.run(expose(metrics_of(self.control.status()))))
        elif path != "/status":
            self._refuse(HTTPStatus.NOT_FOUND, "there are GET /status, GET /metrics and POST /stop")
        elif self._is_permitted():
            found = {"queries": [to_json(one) for one in self.control.status()]}
            self._answer(HTTPStatus.OK, _JSON, json.dumps(found).encode())

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        if parts.path != "/stop":
            self._refuse(HTTPStatus.NOT_FOUND, "there are GET /status, GET /metrics and POST /stop")
        elif self._is_permitted():
            try:
                names = parse_qs(parts.query, max_num_fields=NAMES_MAX).get("pipeline")
            except ValueError:
                self._refuse(HTTPStatus.BAD_REQUEST, f"more than {NAMES_MAX} names")
                return
            self.control.stop(names)
            self._answer(HTTPStatus.ACCEPTED, _JSON, b"{}")

    def _is_permitted(self) -> bool:
        given = self.headers.get(TOKEN_HEADER, "").encode()
        if hmac.compare_digest(given, f"Bearer {self.control.token}".encode()):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "the token of the driver's file is missing or wrong")
        return False

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, _JSON, json.dumps({"error": why}).encode())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: requests are not logged."""


# --- client


class NoResponse(HeadraceError):
    """The driver does not respond or refuses the request; the text says why."""


def ask_status(run: Run) -> list[QueryStatus]:
    found = _request(run, "GET", "/status")
    try:
        return [from_json(one) for one in found["queries"] if one["pipeline"] == run.pipeline]
    except (KeyError, TypeError):
        raise NoResponse(f"the driver of pipeline {run.pipeline} sent something other than its status") from None


def ask_to_stop(run: Run) -> None:
    """Request a stop; the driver has begun to stop when this returns, and has stopped when its file is gone."""
    _request(run, "POST", f"/stop?pipeline={quote(run.pipeline, safe='')}")


def _request(run: Run, method: str, path: str) -> dict[str, Any]:
    who = f"the driver of pipeline {run.pipeline} (process {run.driver.pid})"
    connection = HTTPConnection(LOOPBACK, run.port, timeout=ANSWER_S_MAX)
    try:
        connection.request(method, path, headers={TOKEN_HEADER: f"Bearer {run.token}"})
        response = connection.getresponse()
        body = json.loads(response.read(ANSWER_BYTES_MAX))
    except (OSError, HTTPException, ValueError) as error:
        raise NoResponse(f"{who} does not respond: {error}") from error
    finally:
        connection.close()
    if response.status >= HTTPStatus.BAD_REQUEST or not isinstance(body, dict):
        raise NoResponse(f"{who} refuses: {body.get('error') if isinstance(body, dict) else response.reason}")
    return body
