"""Query listeners that receive Java's progress objects.

PySpark fetches every field of a progress object from Java separately, more than a hundred calls per batch, which is noticeable on two
cores. These listeners receive the Java object itself and read only the fields that they need.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent


class ProgressListener(StreamingQueryListener):
    def __init__(self, spark: SparkSession) -> None:
        self._session = spark

    @abstractmethod
    def on_query_progress(self, progress: Any) -> None:
        """Handle a Java StreamingQueryProgress; called after each batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Do nothing: `on_query_progress` is called instead."""

    @property
    def _jlistener(self) -> Any:
        """Return the object that Spark's virtual machine calls; PySpark reads it when the listener is added or removed."""
        if not hasattr(self, "_called"):
            jvm: Any = self._session._jvm  # type: ignore[attr-defined]
            self._called = jvm.PythonStreamingQueryListenerWrapper(_Unopened(self))
        return self._called


class _Unopened(JStreamingQueryListener):
    def __init__(self, listener: ProgressListener) -> None:
        super().__init__(listener)
        self._listener = listener

    def onQueryProgress(self, jevent: Any) -> None:
        self._listener.on_query_progress(jevent.progress())

    class Java(JStreamingQueryListener.Java):
        pass
