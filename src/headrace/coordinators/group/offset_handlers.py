"""Handlers for committed offsets and for requests about groups of any type."""

from __future__ import annotations

from headrace.coordinators.group.expiry import SWEEP, begin, on_sweep_timer, on_topics_deleted
from headrace.coordinators.group.groups import delete_group
from headrace.coordinators.group.offset_reads import FetchGroup, fetch_stable
from headrace.coordinators.group.offsets import (
    TopicsDeleted,
    apply_legacy_offset,
    apply_offset,
    commit,
    delete_offsets,
)
from headrace.coordinators.group.shard import Handlers
from headrace.coordinators.group.transactional_commits import EndOffsets, commit_in_transaction, end
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.protocol.messages.stored.offsets import LegacyOffsetCommitKey, OffsetCommitKey
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

OFFSETS_HANDLERS = Handlers(
    requests={
        OffsetCommitRequest: commit,
        OffsetDeleteRequest: delete_offsets,
        TxnOffsetCommitRequest: commit_in_transaction,
        EndOffsets: end,
        FetchGroup: fetch_stable,
        DeleteGroupsRequest: delete_group,
        TopicsDeleted: on_topics_deleted,
    },
    appliers={OffsetCommitKey: apply_offset, LegacyOffsetCommitKey: apply_legacy_offset},
    timers={SWEEP: on_sweep_timer},
    on_leading=begin,
)
