"""A listener that passes the progress of queries from Spark's listener thread to the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.pipelines.listening import ProgressListener
from headrace.pipelines.runner.engine import OnProgress, as_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryIdleEvent, QueryStartedEvent, QueryTerminatedEvent


class Listener(ProgressListener):
    def __init__(self, spark: SparkSession, on_progress: OnProgress) -> None:
        super().__init__(spark)
        self._report = on_progress

    def on_query_progress(self, progress: Any) -> None:
        self._report(progress.runId().toString(), progress.name() or "", as_json(progress.json()))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the driver started the query."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._report(str(event.runId), "", None)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the driver polls the query itself, which has the cause."""
