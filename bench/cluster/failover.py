"""How long clients wait after kill -9 of a leader or of the active controller, with the brokers' and the client's defaults."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.errors import BenchFailed, CannotRun
from bench.line import Figure, Measurement, Options
from bench.systems.clusters import NODES, BrokerCluster
from bench.systems.requests import create_topic, delete_topic
from bench.systems.servers import KAFKA, System

GAP_S_MAX = 60.0
STEADY_S = 2.0  # writes before the kill
POLL_S = 0.001
GOAL_S = 2.0


@dataclass(frozen=True)
class LeaderFailover:
    """Kill the leader of a partition while confluent-kafka writes to it."""

    name: str
    title: str
    kills_controller: bool  # whether the killed node is also the active controller
    figures: tuple[Figure, ...] = (
        Figure("gap_s", "to the next acknowledged write, s", False, goal=1.0, digits=2),
        Figure("gap_absolute_s", "to the next acknowledged write, s", False, goal_absolute=GOAL_S, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    on_cluster: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        system.create_topic(topic, NODES)
        controller = system.active_controller()
        leaders = system.topic(topic).leaders
        partition = next(
            (number for number, leader in enumerate(leaders) if (leader == controller) == self.kills_controller), None
        )
        if partition is None:
            raise BenchFailed(f"no suitable leader to kill: the leaders are {leaders}, the controller is {controller}")
        writer = _Writer(system.bootstrap, topic, partition)
        try:
            writer.run_for(min(STEADY_S, options.seconds))
            killed_at = time.monotonic()
            with system.killed(leaders[partition]):
                gap = writer.next_acknowledgement() - killed_at
        finally:
            writer.close()
        system.wait_until_in_sync(topic, NODES)
        system.delete_topic(topic)
        figures = {"gap_s": gap}
        if system.name != KAFKA:
            figures["gap_absolute_s"] = gap
        return Measurement(figures, {"victim": leaders[partition], "controller": controller})


class _Writer:
    """A producer of confluent-kafka with its default settings that keeps one record after the other in flight."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            raise CannotRun(f"confluent-kafka is not installed: {error}") from error
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
        self._topic, self._partition = topic, partition
        self._is_in_flight = False

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._send()
            self._deliver()

    def next_acknowledgement(self) -> float:
        """Return when the first record is acknowledged that is sent from now on.

        The record in flight does not count: its acknowledgement may have arrived before the kill.
        """
        self._deliver()
        self._send()
        self._deliver()
        return time.monotonic()

    def _send(self) -> None:
        self._is_in_flight = True
        self._producer.produce(self._topic, b"x" * 100, partition=self._partition, on_delivery=self._delivered)

    def _deliver(self) -> None:
        deadline = time.monotonic() + GAP_S_MAX
        while self._is_in_flight:
            self._producer.poll(POLL_S)
            if time.monotonic() > deadline:
                raise BenchFailed(f"no acknowledgement within {GAP_S_MAX:.0f} s")

    def _delivered(self, error: object, _: object) -> None:
        self._is_in_flight = False
        if error is not None:
            raise BenchFailed(f"a record was not delivered: {error}")

    def close(self) -> None:
        self._producer.purge()


@dataclass(frozen=True)
class ControllerFailover:
    """Kill the active controller, then create a topic through another node."""

    name: str = "cluster-kill-controller"
    title: str = "kill -9 of the active controller"
    figures: tuple[Figure, ...] = (
        Figure("created_s", "to the next created topic, s", False, goal=1.0, digits=2),
        Figure("created_absolute_s", "to the next created topic, s", False, goal_absolute=GOAL_S, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    on_cluster: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        system.create_topic(topic, NODES)
        controller = system.active_controller()
        survivor = next(node_id for node_id in system.node_ids if node_id != controller)
        connection = system.connection(survivor)
        with system.killed(controller):
            began = time.monotonic()
            attempts = 1
            while True:
                try:
                    create_topic(connection, f"{topic}-next", 1, NODES - 1)
                    break
                except BenchFailed:
                    attempts += 1
                    if time.monotonic() - began > GAP_S_MAX:
                        raise
                    time.sleep(POLL_S)
            created_s = time.monotonic() - began
        system.wait_until_in_sync(topic, NODES)
        delete_topic(system.connection(), f"{topic}-next")
        system.delete_topic(topic)
        figures = {"created_s": created_s}
        if system.name != KAFKA:
            figures["created_absolute_s"] = created_s
        return Measurement(figures, {"attempts": attempts})
