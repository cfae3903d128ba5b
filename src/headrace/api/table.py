"""The list of what is supported: each API with its versions, its handler, and what the asker must be allowed to do.

ApiVersions is made from this table, so it lists exactly what works.
"""

from __future__ import annotations

from headrace.api.cluster import ClusterApi
from headrace.api.configs import ConfigsApi
from headrace.api.controller import ControllerApi
from headrace.api.fetch import FetchApi
from headrace.api.metadata import MetadataApi
from headrace.api.offsets import OffsetsApi
from headrace.api.produce import ProduceApi
from headrace.api.producers import ProducersApi
from headrace.api.topics import TopicsApi
from headrace.api.versions import VersionsApi
from headrace.protocol.apis import ApiKey
from headrace.security.resources import Need, Operation, Resource
from headrace.server.dispatch import Service

NOTHING = Need(Resource.NONE, Operation.NONE)
CLUSTER_ACTION = Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)


def _topic(operation: Operation) -> Need:
    return Need(Resource.TOPIC, operation, per_entity=True)


def _table(*services: Service) -> dict[ApiKey, Service]:
    return {service.key: service for service in services}


def broker_table(
    *,
    versions: VersionsApi,
    produce: ProduceApi,
    fetch: FetchApi,
    offsets: OffsetsApi,
    metadata: MetadataApi,
    topics: TopicsApi,
    producers: ProducersApi,
    cluster: ClusterApi,
    configs: ConfigsApi,
) -> dict[ApiKey, Service]:
    return _table(
        Service(ApiKey.PRODUCE, (3, 13), produce.handle, _topic(Operation.WRITE)),
        Service(ApiKey.FETCH, (4, 18), fetch.handle, _topic(Operation.READ)),
        Service(ApiKey.LIST_OFFSETS, (1, 11), offsets.handle, _topic(Operation.DESCRIBE)),
        Service(ApiKey.METADATA, (0, 13), metadata.handle, _topic(Operation.DESCRIBE)),
        Service(
            ApiKey.FIND_COORDINATOR, (0, 6), producers.find_coordinator, Need(Resource.GROUP, Operation.DESCRIBE, True)
        ),
        Service(ApiKey.API_VERSIONS, (0, 4), versions.handle, NOTHING),
        Service(ApiKey.CREATE_TOPICS, (2, 7), topics.create, _topic(Operation.CREATE)),
        Service(ApiKey.DELETE_TOPICS, (1, 6), topics.delete, _topic(Operation.DELETE)),
        Service(
            ApiKey.INIT_PRODUCER_ID,
            (0, 5),
            producers.init_producer_id,
            Need(Resource.CLUSTER, Operation.IDEMPOTENT_WRITE),
        ),
        Service(ApiKey.DESCRIBE_CONFIGS, (1, 4), configs.describe, _topic(Operation.DESCRIBE_CONFIGS)),
        Service(ApiKey.DESCRIBE_CLUSTER, (0, 2), cluster.describe, Need(Resource.CLUSTER, Operation.DESCRIBE)),
    )


def controller_table(*, versions: VersionsApi, controller: ControllerApi) -> dict[ApiKey, Service]:
    return _table(
        # By topic id only: that is how observers of the quorum name the metadata log.
        Service(ApiKey.FETCH, (13, 18), controller.fetch, CLUSTER_ACTION),
        Service(ApiKey.API_VERSIONS, (0, 4), versions.handle, NOTHING),
        Service(ApiKey.CREATE_TOPICS, (2, 7), controller.create_topics, _topic(Operation.CREATE)),
        Service(ApiKey.DELETE_TOPICS, (1, 6), controller.delete_topics, _topic(Operation.DELETE)),
        Service(ApiKey.ENVELOPE, (0, 0), controller.envelope, CLUSTER_ACTION),
        Service(ApiKey.BROKER_REGISTRATION, (0, 4), controller.register, CLUSTER_ACTION),
        Service(ApiKey.BROKER_HEARTBEAT, (0, 2), controller.heartbeat, CLUSTER_ACTION),
        Service(ApiKey.ALLOCATE_PRODUCER_IDS, (0, 0), controller.allocate_producer_ids, CLUSTER_ACTION),
    )
