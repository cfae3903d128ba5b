"""An HTTP schema registry for tests, which returns what is put into it and fails on demand."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class RegistryStub:
    def __init__(self) -> None:
        self.responses: dict[str, Any] = {}  # by path: an object to send as JSON, or raw bytes
        self.requested_paths: list[str] = []
        self.failing_statuses: list[int] = []  # statuses of the next responses
        self.user_info: str | None = None
        self.slow_s = 0.0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.respond(self)

            def log_message(self, *args: str) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(
        self,
        number: int,
        schema: dict[str, Any] | str,
        subject: str | None = None,
        kind: str = "AVRO",
        references: list[tuple[str, str, int]] | tuple[Any, ...] = (),
        serialized: bytes | None = None,
        version: int = 1,
    ) -> None:
        """Register a schema; `serialized` is the protobuf descriptor returned for ?format=serialized."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            found["schemaType"] = kind
        if references:
            found["references"] = [{"name": name, "subject": of, "version": which} for name, of, which in references]
        paths = [f"/schemas/ids/{number}"]
        if subject is not None:
            paths += [f"/subjects/{subject}/versions/latest", f"/subjects/{subject}/versions/{version}"]
        for path in paths:
            self.responses[path] = found
            if serialized is not None:
                encoded = base64.b64encode(serialized).decode()
                self.responses[path + "?format=serialized"] = {**found, "schema": encoded}

    def respond(self, handler: Any) -> None:
        parts = urlsplit(handler.path)
        path = unquote(parts.path)
        with_query = f"{path}?{parts.query}" if parts.query else path
        self.requested_paths.append(with_query)
        time.sleep(self.slow_s)
        status, found = 200, self.responses.get(with_query, self.responses.get(path))
        if self.failing_statuses:
            status, found = self.failing_statuses.pop(0), {"error_code": 1, "message": "as wished"}
        elif self.user_info is not None and handler.headers.get("Authorization") != "Basic " + base64.b64encode(
            self.user_info.encode()
        ).decode("ascii"):
            status, found = 401, {"error_code": 40101, "message": "who are you?"}
        elif found is None:
            status, found = 404, {"error_code": 40403, "message": "Schema not found"}
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        handler.send_response(status)
        if status in (301, 302):
            handler.send_header("Location", "http://127.0.0.1:9/")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    @contextmanager
    def serving(self) -> Iterator[RegistryStub]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data
