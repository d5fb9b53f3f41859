"""A job of Spark in a thread of its own, so that the thread which waits for it can listen to what
its tasks report, and can end it."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Any, Final

from lockstitch.spark.context import pyspark

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS: Final = itertools.count()


class SparkJob:
    """`work`, which runs an action of Spark, begun at once. The job has a job group of its own, and
    else the properties of the calling thread (its pool, say). For a selector it is readable when
    it is about to be over."""

    def __init__(self, context: Any, description: str, work: Callable[[], Any]) -> None:
        self._context = context
        self._description = description
        self._work = work
        self.group = f"lockstitch.spark {os.getpid()}.{next(_NUMBERS)}"
        self.value: Any = None
        """What `work` has returned."""
        self.error: BaseException | None = None
        """What it has raised."""
        self._read_end, self._write_end = os.pipe()
        self._thread = pyspark().InheritableThread(target=self._run, name="lockstitch spark job")
        self._thread.daemon = True
        self._thread.start()

    def __repr__(self) -> str:
        return f"<SparkJob {self.group!r} · {'over' if self.is_over else 'runs'}>"

    def fileno(self) -> int:
        """For a selector."""
        return self._read_end

    @property
    def is_over(self) -> bool:
        """Whether `work` has come back."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Has Spark kill its tasks, or not begin them; harmless when it is over."""
        with contextlib.suppress(Exception):  # the context was stopped, and the job with it
            # Where `work` has not come so far, `cancelJobGroup` would find nothing to cancel.
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self.group)

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Waits until it is over, or until then."""
        self._thread.join(timeout_seconds)

    def close(self) -> None:
        """To be called when nobody waits for it any more; harmless when repeated."""
        read_end, self._read_end = self._read_end, -1
        if read_end >= 0:
            os.close(read_end)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self.group, self._description, interruptOnCancel=True)
            self.value = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits looks at it
            self.error = error
        finally:
            os.close(self._write_end)  # the other end is readable then


def what_spark_says(error: BaseException) -> str:
    """Returns the words of an error of an action of Spark without the stacks of its JVM."""
    inner = getattr(error, "java_exception", None)
    text = str(error) if inner is None else str(inner.getMessage())
    lines = [line for line in text.splitlines() if not line.startswith(("\tat ", "Driver stack"))]
    return "\n".join(lines).strip()
