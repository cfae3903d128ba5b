"""Request and response headers; headers.py of the package reads and builds them without these classes."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, header
from headrace.protocol.types import Int16, Int32, String


@header("1-2", flexible="2+")
class RequestHeader(Struct):
    request_api_key: Int16 = 0
    request_api_version: Int16 = 0
    correlation_id: Int32 = 0
    client_id: Annotated[String | None, Field(flexible=False)] = ""


@header("0-1", flexible="1+")
class ResponseHeader(Struct):
    correlation_id: Int32 = 0
