"""Our own client, on any Kafka."""

from __future__ import annotations

from headrace.testing.peers import available
from tools.prove.registry import NotRun, check, say


@check(
    "client-conformance",
    "our client on real Kafka and on us alike: records in five codecs as librdkafka writes and reads them, 10,000 keys where Java puts "
    "them, groups of five protocols under kills of members and node (every record read, no commit goes back), transactions with offsets "
    "and zombies, nothing lost or doubled when the node dies under load, full buffers and late deliveries told in time",
)
def client_conformance() -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove.client_conformance.play import play

    told = play(say)
    return f"{len(told)} acts on 2 stages: " + "; ".join(told.values())
