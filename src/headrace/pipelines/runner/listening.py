"""Spark tells a listener what its queries do, in a thread of its own: it is handed on, and looked at elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.pipelines.listening import ProgressListener
from headrace.pipelines.runner.engine import Tell, as_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryIdleEvent, QueryStartedEvent, QueryTerminatedEvent


class Listener(ProgressListener):
    def __init__(self, spark: SparkSession, tell: Tell) -> None:
        super().__init__(spark)
        self._tell = tell

    def told(self, progress: Any) -> None:
        self._tell(progress.runId().toString(), progress.name() or "", as_json(progress.json()))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Whoever started it knows."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._tell(str(event.runId), "", None)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The driver asks the query itself, which knows why."""
