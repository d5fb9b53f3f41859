"""A Spark of this process: a SparkContext whose barrier stage runs each task in a thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

from lockstitch.spark import context as module_of_context
from lockstitch.spark import jobs, task

if TYPE_CHECKING:
    import pytest


class FakeBarrierContext:
    """That of one task. `gpus`: what Spark has given to it."""

    def __init__(self, task, meeting, gpus=(), attempt=0):
        self._task = task
        self._meeting = meeting
        self._gpus = gpus
        self._attempt = attempt

    def attemptNumber(self):  # noqa: N802 - Spark's names here and below
        return self._attempt

    def allGather(self, message):  # noqa: N802
        self._meeting.messages[self._task] = message
        self._meeting.barrier.wait(30)
        return list(self._meeting.messages)

    def getTaskInfos(self):  # noqa: N802
        return [SimpleNamespace(address="127.0.0.1:1") for _ in self._meeting.messages]

    def resources(self):
        return (
            {"gpu": SimpleNamespace(name="gpu", addresses=list(self._gpus))} if self._gpus else {}
        )


class FakeContext:
    """A SparkContext. `room`: how many tasks it can run at once, now and each time that somebody
    asks later; `conf`: its settings."""

    def __init__(self, master="local[4]", room=(4,), conf=None):
        self.master = master
        self.defaultParallelism = 2
        self.conf = {"spark.driver.host": "127.0.0.1", **(conf or {})}
        self.groups = []
        self.cancelled = []
        self.broadcasts = []
        self.tasks = 0
        self.run_task = None
        self._rooms = iter(room)
        self._room = next(self._rooms)
        inner = SimpleNamespace(
            maxNumConcurrentTasks=lambda _profile: self._next_room(),
            cancelJobGroupAndFutureJobs=self.cancelled.append,
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
        )
        self._jsc = SimpleNamespace(sc=lambda: inner)

    def _next_room(self):
        now = self._room
        self._room = next(self._rooms, now)
        return now

    def getConf(self):  # noqa: N802
        return self.conf

    def setJobGroup(self, group, description, interruptOnCancel):  # noqa: N802, N803
        self.groups.append(group)

    def broadcast(self, value):
        made = SimpleNamespace(value=value, is_destroyed=False)
        made.destroy = lambda: setattr(made, "is_destroyed", True)
        self.broadcasts.append(made)
        return made

    def parallelize(self, _rows, tasks):
        self.tasks = tasks
        return self

    def barrier(self):
        return self

    def mapPartitionsWithIndex(self, work):  # noqa: N802
        return SimpleNamespace(collect=lambda: self._collect(work))

    def _collect(self, work):
        meeting = SimpleNamespace(messages=[""] * self.tasks, barrier=threading.Barrier(self.tasks))
        values, errors = {}, []

        def run(number):
            try:
                values[number] = self.run_task(work, number, meeting)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)

        threads = [threading.Thread(target=run, args=(each,)) for each in range(self.tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise RuntimeError(f"Job aborted due to stage failure: {errors[0]}")
        return [each for number in range(self.tasks) for each in values[number]]


class FakeSpark:
    """The module pyspark with that context (or none), whose tasks have a context of their own."""

    def __init__(self, context):
        self.SparkContext = SimpleNamespace(_active_spark_context=context)
        self.InheritableThread = threading.Thread
        self.BarrierTaskContext = SimpleNamespace(get=lambda: self._own.context)
        self.gpus = {}
        """By task."""
        self._own = threading.local()
        if context is not None:
            context.run_task = self._run_task

    def _run_task(self, work, number, meeting):
        self._own.context = FakeBarrierContext(number, meeting, self.gpus.get(number, ()))
        return list(work(number, iter(())))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
        for module in (module_of_context, jobs, task):
            monkeypatch.setattr(module, "pyspark", lambda: self)
        return self
