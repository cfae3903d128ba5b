"""Metadata records about configs, quotas, features, producer ids, and the brackets of atomic groups of records."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, metadata_record
from headrace.protocol.types import Bool, Float64, Int8, Int16, Int32, Int64, String


@metadata_record(4, "0", flexible="0+")
class ConfigRecord(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    value: String | None = ""


@metadata_record(14, "0", flexible="0+")
class ClientQuotaRecord(Struct):
    class EntityData(Struct):
        entity_type: String = ""
        entity_name: String | None = ""

    entity: list[EntityData] = []
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


@metadata_record(12, "0", flexible="0+")
class FeatureLevelRecord(Struct):
    name: String = ""
    feature_level: Int16 = 0


@metadata_record(15, "0", flexible="0+")
class ProducerIdsRecord(Struct):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@metadata_record(20, "0", flexible="0+")
class NoOpRecord(Struct):
    pass


@metadata_record(21, "0", flexible="0+")
class ZkMigrationStateRecord(Struct):
    zk_migration_state: Int8 = 0


@metadata_record(23, "0", flexible="0+")
class BeginTransactionRecord(Struct):
    name: Annotated[String | None, Field(tag=0)] = None


@metadata_record(24, "0", flexible="0+")
class EndTransactionRecord(Struct):
    pass


@metadata_record(25, "0", flexible="0+")
class AbortTransactionRecord(Struct):
    reason: Annotated[String | None, Field(tag=0)] = None
