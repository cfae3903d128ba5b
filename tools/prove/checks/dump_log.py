"""Our files are what Kafka writes, according to its own tool."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from testkit import kafka_peer as peers

from headrace.testing.processes import NodeProcess
from tools.prove.clients import CLIENTS, CODECS, WriteOptions
from tools.prove.clients.samples import FIRST_MS, Sample
from tools.prove.dumping import dump_everything
from tools.prove.registry import NotRun, check, say

SETTINGS = {"num.partitions": "2", "log.segment.bytes": "1048576", "log.index.interval.bytes": "4096"}
BULK_RECORDS = 700
BULK_BYTES = 4000
LIVES = 4  # number of times the node is killed or stopped, in turn


@check(
    "dump-log-finds-nothing-wrong",
    "Kafka's own dump-log reads every file that Headrace writes (deep iteration, index checks, metadata decoder) "
    "and finds no error",
)
def dump_log_finds_nothing_wrong() -> str:
    reason = peers.available()
    if reason is not None:
        raise NotRun(reason)
    with NodeProcess(SETTINGS) as node:
        for life in range(LIVES):
            _write(node.bootstrap, life)
            if life % 2:
                assert node.terminate() == 0, node.log_text()[-2000:]
            else:
                node.kill()
            node.start()
        _write(node.bootstrap, LIVES)
        assert node.terminate() == 0, node.log_text()[-2000:]
        dump = dump_everything(node.data_dir)
    assert not dump.trouble, f"dump-log found {len(dump.trouble)} things: " + "; ".join(dump.trouble[:10])
    assert len(dump.epochs) > 1 and dump.producers > 0, "too little was written to be worth a look"
    return f"{dump.files} files, {dump.batches} batches, {dump.records} records, {dump.producers} producer entries, 0 complaints"


def _write(bootstrap: str, life: int) -> None:
    """Write with all available clients in all codecs, enough for several segments in each life."""
    random = Random(life)
    for codec in CODECS:
        for client in CLIENTS:
            # Java takes seconds to start: once per life is enough.
            if client.missing(codec) is None and (client.name != "java" or codec == CODECS[life % len(CODECS)]):
                client.write(bootstrap, f"mixed-{codec}", client.samples(), WriteOptions(codec))
        # librdkafka makes large batches, aiokafka small ones: segments of one batch, and indexes with many entries.
        for client in CLIENTS[:2]:
            client.write(bootstrap, f"bulk-{client.name}", _bulk(random), WriteOptions(codec, idempotent=life % 2 == 0))
    say(f"life {life + 1}: written")


def _bulk(random: Random) -> Sequence[Sample]:
    return [Sample(b"key", random.randbytes(BULK_BYTES), (), FIRST_MS + number) for number in range(BULK_RECORDS)]
