"""All options of a node, with Kafka's names, types, defaults and bounds. Options without effect are marked as such."""

from __future__ import annotations

from headrace.options.node.groups import GROUPS_OPTIONS
from headrace.options.node.logs import LOGS_OPTIONS
from headrace.options.node.metrics import METRICS_OPTIONS
from headrace.options.node.network import NETWORK_OPTIONS
from headrace.options.node.other_logins import OTHER_LOGINS_OPTIONS
from headrace.options.node.quorum import QUORUM_OPTIONS
from headrace.options.node.replication import REPLICATION_OPTIONS
from headrace.options.node.security import SECURITY_OPTIONS
from headrace.options.node.share_groups import SHARE_GROUPS_OPTIONS
from headrace.options.node.tiering import TIERING_OPTIONS
from headrace.options.node.transactions import TRANSACTIONS_OPTIONS
from headrace.options.table import OptionTable

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
