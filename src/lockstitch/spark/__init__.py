"""Ranks as tasks of Spark: `horovod.spark` with the same names, as `lockstitch.hvd.spark` too.

    running     run: a fixed number of ranks, one for each task of a barrier stage (driver)
    elastic     run_elastic: ranks that come and go, each a job of one task
    context     the SparkContext, and how many tasks it can run at once (driver)
    jobs        a job of Spark in a thread of its own (driver)
    reports     what tasks tell the driver, over a line of ours
    desk        where the driver hears it: who runs, what they say, who failed first
    placement   which task gets which rank: host by host
    task        what each task does (executor)
    rank        the process of a rank, under its task (executor)

    driver                                      executor
    run ─▶ desk ◀──── reports ──────────────── task ─▶ rank: a process of its own
       └─▶ jobs ─▶ Spark ─▶ barrier stage ─────▶ │       └─▶ lockstitch.hvd.runner.task
              ◀──────── results ─────────────────┘

Spark places the tasks, starts all of them at once, and ends all when one fails. pyspark is imported
when something is run, and not before; torch by the driver and by the ranks, not by the tasks.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstitch.spark.elastic import run_elastic
    from lockstitch.spark.running import run

__all__ = ["run", "run_elastic"]


if not TYPE_CHECKING:  # else a type checker would find any name here

    def __getattr__(name: str) -> object:
        if name in __all__:
            module = "elastic" if name == "run_elastic" else "running"
            return getattr(import_module(f"lockstitch.spark.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
