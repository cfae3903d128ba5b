"""Errors of pipelines, reported in one line instead of a Python traceback inside a Java stack trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import HeadraceError

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


class SourceError(HeadraceError):
    """A read that cannot continue; the text says why and what to do."""


class DataLoss(SourceError):
    """Records that should have been read no longer exist, and failOnDataLoss is true."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report Headrace's errors without a traceback, and all others with one; wraps everything that Spark calls in a worker.

    Spark's worker reads the environment variable when it reports an exception, and exits afterwards, so no later error loses its traceback.
    """
    try:
        yield
    except SourceError:
        os.environ[HIDE_TRACEBACK] = "1"
        raise
    except HeadraceError as error:
        os.environ[HIDE_TRACEBACK] = "1"
        raise SourceError(str(error)) from None
