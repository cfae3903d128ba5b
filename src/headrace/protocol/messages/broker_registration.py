"""BrokerRegistration: a broker introduces one incarnation of itself and receives its broker epoch."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String, Uint16, Uuid


@request(62, "0-4", flexible="0+", listeners="controller")
class BrokerRegistrationRequest(Struct):
    class Listener(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0
        security_protocol: Int16 = 0

    class Feature(Struct):
        name: String = ""
        min_supported_version: Int16 = 0
        max_supported_version: Int16 = 0

    broker_id: Int32 = 0
    cluster_id: String = ""
    incarnation_id: Uuid = ZERO_UUID
    listeners: list[Listener] = []
    features: list[Feature] = []
    rack: String | None = ""
    is_migrating_zk_broker: Annotated[Bool, Field("1+")] = False
    log_dirs: Annotated[list[Uuid], Field("2+", ignorable=True)] = []
    previous_broker_epoch: Annotated[Int64, Field("3+", ignorable=True)] = -1


@response(62, "0-4", flexible="0+")
class BrokerRegistrationResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1
