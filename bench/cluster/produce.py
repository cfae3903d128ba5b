"""Produce with acks=all to partitions with three replicas, each connection to the leader of its partition."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.line import Figure, Measurement, Options
from bench.load.frames import ALL_ACKS, make_batch
from bench.load.generator import Load, run_load
from bench.load.produce import IN_FLIGHT, produce_load
from bench.systems.clusters import REPLICAS, BrokerCluster
from bench.systems.servers import KAFKA, System


@dataclass(frozen=True)
class ReplicatedProduce:
    name: str
    title: str
    figures: tuple[Figure, ...]
    records: int
    value_bytes: int
    connections: int
    partitions: int
    in_flight: int = IN_FLIGHT
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    on_cluster: bool = True
    warm_rounds: int = 1

    def load(self, topic: str) -> Load:
        batches = [make_batch(self.records, self.value_bytes)] * self.connections
        return produce_load(topic, batches, self.partitions, self.in_flight, ALL_ACKS)

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        system.create_topic(topic, self.partitions)
        try:
            span = replace(options.span, bytes_max=options.bytes_max // REPLICAS)
            outcome = run_load(self.load(topic), system.target(topic), span)
        finally:
            system.delete_topic(topic)
        return Measurement({figure.key: getattr(outcome, figure.key) for figure in self.figures}, outcome.as_json())
