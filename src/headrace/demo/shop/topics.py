"""The topics of the shop."""

from __future__ import annotations

from headrace.client.admin.topic_changes import NewTopic
from headrace.demo.shop.events import PARTITIONS

PREFIX = "shop-"
CLICKS, ORDERS, CUSTOMERS = f"{PREFIX}clicks", f"{PREFIX}orders", f"{PREFIX}customers"
CLOSINGS = f"{PREFIX}closings"  # the number of events at each closing of the shop
PAGE_VIEWS, SESSIONS, ENRICHED_ORDERS = f"{PREFIX}page-views", f"{PREFIX}sessions", f"{PREFIX}enriched-orders"
RESULTS = (PAGE_VIEWS, SESSIONS, ENRICHED_ORDERS)
INPUT_BYTES_MAX = 1 << 30  # bytes per partition: an unbounded run must not fill the disk

_FOR_EVER = {"retention.ms": "-1"}
TOPICS = (
    *(
        NewTopic(name, PARTITIONS, configs={**_FOR_EVER, "retention.bytes": str(INPUT_BYTES_MAX)})
        for name in (CLICKS, ORDERS)
    ),
    NewTopic(CUSTOMERS, 1, configs={"cleanup.policy": "compact"}),
    NewTopic(CLOSINGS, 1, configs=_FOR_EVER),
    *(NewTopic(name, PARTITIONS, configs=_FOR_EVER) for name in RESULTS),
)
PARTITION_COUNTS = {topic.name: topic.partitions for topic in TOPICS}
