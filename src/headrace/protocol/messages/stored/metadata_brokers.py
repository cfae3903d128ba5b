"""Metadata records about brokers and controllers."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, metadata_record
from headrace.protocol.types import Bool, Int8, Int16, Int32, Int64, String, Uint16, Uuid


@metadata_record(0, "0-4", flexible="0+")
class RegisterBrokerRecord(Struct):
    class BrokerEndpoint(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0
        security_protocol: Int16 = 0

    class BrokerFeature(Struct):
        name: String = ""
        min_supported_version: Int16 = 0
        max_supported_version: Int16 = 0

    broker_id: Int32 = 0
    is_migrating_zk_broker: Annotated[Bool, Field("2+")] = False
    incarnation_id: Uuid = ZERO_UUID
    broker_epoch: Int64 = 0
    end_points: list[BrokerEndpoint] = []
    features: list[BrokerFeature] = []
    rack: String | None = ""
    fenced: Bool = True
    in_controlled_shutdown: Annotated[Bool, Field("1+")] = False
    log_dirs: Annotated[list[Uuid], Field("3+", tag=0)] = []
    cordoned_log_dirs: Annotated[list[Uuid] | None, Field("4+", tag=1)] = None


@metadata_record(1, "0", flexible="0+")
class UnregisterBrokerRecord(Struct):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


@metadata_record(17, "0-3", flexible="0+")
class BrokerRegistrationChangeRecord(Struct):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    fenced: Annotated[Int8, Field(tag=0)] = 0
    in_controlled_shutdown: Annotated[Int8, Field("1+", tag=1)] = 0
    log_dirs: Annotated[list[Uuid], Field("2+", tag=2)] = []
    cordoned_log_dirs: Annotated[list[Uuid] | None, Field("3+", tag=3)] = None


@metadata_record(7, "0", flexible="0+")
class FenceBrokerRecord(Struct):
    id: Int32 = 0
    epoch: Int64 = 0


@metadata_record(8, "0", flexible="0+")
class UnfenceBrokerRecord(Struct):
    id: Int32 = 0
    epoch: Int64 = 0


@metadata_record(27, "0", flexible="0+")
class RegisterControllerRecord(Struct):
    class ControllerEndpoint(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0
        security_protocol: Int16 = 0

    class ControllerFeature(Struct):
        name: String = ""
        min_supported_version: Int16 = 0
        max_supported_version: Int16 = 0

    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    end_points: list[ControllerEndpoint] = []
    features: list[ControllerFeature] = []
