"""All options of a node, with Kafka's names, types, defaults and bounds. Options without effect are marked as such."""

from __future__ import annotations

from headrace.base.options import OptionTable
from headrace.broker.options.groups import GROUPS_OPTIONS
from headrace.broker.options.logs import LOGS_OPTIONS
from headrace.broker.options.metrics import METRICS_OPTIONS
from headrace.broker.options.network import NETWORK_OPTIONS
from headrace.broker.options.other_logins import OTHER_LOGINS_OPTIONS
from headrace.broker.options.quorum import QUORUM_OPTIONS
from headrace.broker.options.replication import REPLICATION_OPTIONS
from headrace.broker.options.security import SECURITY_OPTIONS
from headrace.broker.options.share_groups import SHARE_GROUPS_OPTIONS
from headrace.broker.options.tiering import TIERING_OPTIONS
from headrace.broker.options.transactions import TRANSACTIONS_OPTIONS

NODE_OPTIONS = OptionTable(
    *NETWORK_OPTIONS.values(),
    *LOGS_OPTIONS.values(),
    *REPLICATION_OPTIONS.values(),
    *QUORUM_OPTIONS.values(),
    *GROUPS_OPTIONS.values(),
    *SHARE_GROUPS_OPTIONS.values(),
    *TRANSACTIONS_OPTIONS.values(),
    *SECURITY_OPTIONS.values(),
    *OTHER_LOGINS_OPTIONS.values(),
    *TIERING_OPTIONS.values(),
    *METRICS_OPTIONS.values(),
)
