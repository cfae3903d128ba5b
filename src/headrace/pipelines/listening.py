"""Spark tells listeners what its queries do. PySpark asks Java for every field of a progress by itself, over a hundred for each batch,
which is felt on two cores: ours are handed Java's own object, and ask for what they want to know.
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
    def told(self, progress: Any) -> None:
        """A StreamingQueryProgress of Java's, after each batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Comes as `told`."""

    @property
    def _jlistener(self) -> Any:
        """What Spark's virtual machine calls; PySpark asks for it when the listener is added and when it is removed."""
        if not hasattr(self, "_called"):
            jvm: Any = self._session._jvm  # type: ignore[attr-defined]
            self._called = jvm.PythonStreamingQueryListenerWrapper(_Unopened(self))
        return self._called


class _Unopened(JStreamingQueryListener):
    def __init__(self, listener: ProgressListener) -> None:
        super().__init__(listener)
        self._listener = listener

    def onQueryProgress(self, jevent: Any) -> None:
        self._listener.told(jevent.progress())

    class Java(JStreamingQueryListener.Java):
        pass
