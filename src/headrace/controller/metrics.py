"""The controller's view of the cluster for /metrics: KafkaController and ControllerStats, under jmx_exporter's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.controller.context import ControllerContext
from headrace.observe.text_format import LINES_AT_ONCE, family

_PREFIX = "kafka_controller_kafkacontroller_"
_HELP = {
    "activecontrollercount": "1 on the controller that leads the quorum.",
    "activebrokercount": "Brokers that serve clients.",
    "fencedbrokercount": "Brokers that are registered but fenced.",
    "globaltopiccount": "Topics of the cluster.",
    "globalpartitioncount": "Partitions of the cluster.",
    "offlinepartitionscount": "Partitions without a leader.",
    "preferredreplicaimbalancecount": "Partitions led by another replica than the preferred one.",
}
_STATS_PREFIX = "kafka_controller_controllerstats_"


class ControllerMetrics:
    """A section of /metrics. A controller that does not lead reports zeros as gauges, so that sums over a cluster are right.

    Elections are counted by the controller that decided them.
    """

    def __init__(self, context: ControllerContext, is_active: Callable[[], bool]) -> None:
        self._context = context
        self._is_active = is_active

    def expose(self) -> Iterator[bytes]:
        values = dict.fromkeys(_HELP, 0)
        if self._is_active():
            fenced = sum(broker.fenced for _, broker in self._context.brokers())
            partitions = self._context.partitions()
            values |= {
                "activecontrollercount": 1,
                "activebrokercount": len(self._context.brokers()) - fenced,
                "fencedbrokercount": fenced,
                "globaltopiccount": len(self._context.topic_names()),
                "globalpartitioncount": len(partitions),
            }
            for number, (_, partition) in enumerate(partitions):
                values["offlinepartitionscount"] += not partition.has_leader
                values["preferredreplicaimbalancecount"] += partition.leader != partition.replicas[0]
                if number % LINES_AT_ONCE == 0:
                    yield b""  # let other tasks run
        for name, help in _HELP.items():
            yield from family(_PREFIX + name, help, "gauge", [("", values[name])])
        elections = self._context.elections
        for name, help, count in (
            ("leaderelectionrateandtimems_count", "Leaders elected.", elections.elected),
            (
                "electionfromeligibleleaderreplicas_total",
                "Leaders elected that were not in sync, but eligible: no records were lost.",
                elections.from_elr,
            ),
            (
                "uncleanleaderelections_total",
                "Leaders elected that were not in sync: records may have been lost.",
                elections.unclean,
            ),
        ):
            yield from family(_STATS_PREFIX + name, help, "counter", [("", count)])
