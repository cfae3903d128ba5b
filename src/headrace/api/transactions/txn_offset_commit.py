"""TxnOffsetCommit 0–5: offsets of a group, committed as part of a producer's transaction.

The partition of __consumer_offsets must be part of the transaction, like any other that is written to. Clients of version 5 rely on
the group coordinator to add it; older ones have added it themselves, and it is only verified (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.api.groups.group_decisions import coordinator_request
from headrace.api.permissions import on_transactional_ids
from headrace.base.eager import at_once
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.broker.shard_runner import APPEND_ERRORS, Coordination
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from headrace.replication.verification import UNGUARDED, Guard, TransactionVerifier
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

LOADING_VERSION_MIN = 2  # older clients do not know COORDINATOR_LOAD_IN_PROGRESS
ABORTABLE_VERSION_MIN = 4  # older clients do not know TRANSACTION_ABORTABLE
ADDING_VERSION_MIN = 5  # version from which the coordinator adds the partition

CommitTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
CommittedTopic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Committed = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition

# Errors of the transaction coordinator, as errors that clients expect from a group coordinator.
VERIFICATION_ERRORS = APPEND_ERRORS | {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    # The client retries without looking up the coordinator again.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE,
}


class TxnOffsetCommitApi:
    def __init__(
        self,
        groups: Coordination[GroupShard],
        image: Callable[[], Image],
        verifier: TransactionVerifier,
        verification_enabled: Callable[[], bool],
    ) -> None:
        self._groups = groups
        self._image = image
        self._verifier = verifier
        self._verification_enabled = verification_enabled

    def services(self) -> list[Service]:
        return [Service(ApiKey.TXN_OFFSET_COMMIT, (0, 5), at_once(self.commit), on_transactional_ids(Operation.WRITE))]

    async def commit(self, context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return _refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        permitted = context.permitted(Operation.READ, Resource.TOPIC, [topic.name for topic in request.topics])
        response, left = TxnOffsetCommitResponse(), list[CommitTopic]()
        left_results: list[list[Committed]] = []  # where the results of each topic in `left` are added
        for topic in request.topics:
            topic_response = CommittedTopic(topic.name)
            response.topics.append(topic_response)
            known = self._image().topics.get(topic.name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic.name not in permitted:
                known, code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            good = []
            for partition in topic.partitions:
                if known is not None and 0 <= partition.partition_index < len(known.partitions):
                    good.append(partition)
                else:
                    topic_response.partitions.append(Committed(partition.partition_index, code))
            if good:
                left.append(CommitTopic(topic.name, good))
                left_results.append(topic_response.partitions)
        if not left:
            return response
        decided = await self._decide(context, _with_topics(request, left))
        for results, topic_decided in zip(left_results, decided.topics, strict=True):
            results += topic_decided.partitions
        return response

    async def _decide(self, context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        try:
            if not request.group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            guard = await self._verify(context.api_version, request)
            decided: TxnOffsetCommitResponse = await self._groups.decide_in_transaction(
                request.group_id, coordinator_request(context, request), guard
            )
            return decided
        except KafkaError as error:
            code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < LOADING_VERSION_MIN:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return _refused(request, code)

    async def _verify(self, version: int, request: TxnOffsetCommitRequest) -> Guard:
        """Return the guard for the append, confirmed by the transaction coordinator; raise KafkaError if it refuses.

        The guard is set BEFORE the request to the coordinator, so that a marker that arrives in between removes it.
        """
        producer_id, epoch = request.producer_id, request.producer_epoch
        adds = version >= ADDING_VERSION_MIN
        if not adds and not self._verification_enabled():
            return UNGUARDED
        guard = self._groups.guard(request.group_id, producer_id, epoch, adds=adds)
        if not guard.waits:
            return guard
        name = TopicPartition(self._groups.topic, self._groups.partition_of(request.group_id))
        codes = await self._verifier.verify(request.transactional_id, producer_id, epoch, [name], add=adds)
        code = codes.get(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION_MIN:
            code = ErrorCode.INVALID_TXN_STATE
        if code is not ErrorCode.NONE:
            raise KafkaError(VERIFICATION_ERRORS.get(code, code))
        return guard


def _with_topics(request: TxnOffsetCommitRequest, topics: list[CommitTopic]) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        request.transactional_id,
        request.group_id,
        request.producer_id,
        request.producer_epoch,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        topics,
    )


def _refused(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            CommittedTopic(topic.name, [Committed(partition.partition_index, code) for partition in topic.partitions])
            for topic in request.topics
        ]
    )
