"""What goes wrong in a pipeline, said in one line instead of a traceback within a stack of Java's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import HeadraceError

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


class SourceError(HeadraceError):
    """A read that cannot go on; the text says why, and what to do."""


class DataLoss(SourceError):
    """Records that were to be read are not there any more, and failOnDataLoss is true."""


@contextmanager
def told_plainly() -> Iterator[None]:
    """For whatever Spark calls in a Python worker: our own errors are told as they are, all others with their traceback.

    Spark's worker looks at the variable when it reports what was raised, and ends afterwards: nobody else will miss a traceback.
    """
    try:
        yield
    except SourceError:
        os.environ[HIDE_TRACEBACK] = "1"
        raise
    except HeadraceError as error:
        os.environ[HIDE_TRACEBACK] = "1"
        raise SourceError(str(error)) from None
