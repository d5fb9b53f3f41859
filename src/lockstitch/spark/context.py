"""The SparkContext of this program, and whether it has room for all ranks.

A barrier stage begins when all its tasks can run at once. Spark itself says after ten minutes that
they never will; here that is said when the number of tasks that fit has stopped growing.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import CollectiveError, NotInitializedError

if TYPE_CHECKING:
    from lockstitch.clock import Clock

SETTLING_SECONDS: Final = 10.0
"""How long no executor has come, when none is expected any more."""
_LOOK_SECONDS: Final = 0.25


def pyspark() -> Any:
    """Returns the module. Raises `ImportError`, with what to install, where there is none."""
    try:
        return importlib.import_module("pyspark")
    except ModuleNotFoundError as error:
        raise ImportError(
            "ranks on Spark need PySpark 4: install lockstitch[spark], and Java 17 or 21",
            name="pyspark",
        ) from error


def active_context() -> Any:
    """Returns the SparkContext of this program. Raises `ImportError` where there is no pyspark,
    `NotInitializedError` where there is no active SparkContext."""
    context = pyspark().SparkContext._active_spark_context
    if context is None:
        raise NotInitializedError(
            "Could not find an active SparkContext, are you running in a PySpark session? Make one "
            "before, by SparkSession.builder.getOrCreate(); a session of Spark Connect has none"
        )
    return context


def is_local(context: Any) -> bool:
    """Whether its executor is the driver itself (`local[4]`)."""
    return bool(context.master == "local" or context.master.startswith("local["))


def room(context: Any) -> int:
    """Returns how many tasks Spark can run at once on the executors that are there now."""
    inner = context._jsc.sc()
    return int(inner.maxNumConcurrentTasks(inner.resourceProfileManager().defaultResourceProfile()))


def room_to_come(context: Any, most: int) -> int:
    """Returns how many tasks, at most so many, Spark can run at once; all of them where it
    allocates executors as soon as tasks wait for them."""
    return most if _is_dynamic(context) else min(room(context), most)


def wait_for_room(context: Any, tasks: int, start_seconds: float, clock: Clock) -> None:
    """Waits until Spark can run so many tasks of a barrier stage at once; busy executors count.
    Raises `CollectiveError` as `settled_room` does, and where executors are allocated
    dynamically."""
    if _is_dynamic(context):
        raise CollectiveError(
            "the ranks are the tasks of a barrier stage, for which Spark does not allocate "
            "executors dynamically: set spark.dynamicAllocation.enabled=false and "
            "spark.executor.instances to what the ranks need"
        )
    settled_room(context, tasks, tasks, start_seconds, clock)


def settled_room(context: Any, tasks: int, least: int, start_seconds: float, clock: Clock) -> int:
    """Waits until Spark can run so many tasks at once, or until nothing changes any more: where no
    executor has come for 10 s, where the executors are this process's own threads, and after
    `start_seconds`. Returns how many of them it can run (`room_to_come`). Raises `CollectiveError`
    where these are fewer than `least`."""
    best = room_to_come(context, tasks)
    grown_at = began_at = clock.now()
    while best < tasks:
        now = clock.now()
        if (
            is_local(context)
            or now - grown_at >= SETTLING_SECONDS
            or now - began_at >= start_seconds
        ):
            break
        clock.wait(threading.Event(), _LOOK_SECONDS)
        found = room_to_come(context, tasks)
        if found > best:
            best, grown_at = found, clock.now()
    if best < least:
        raise CollectiveError(_no_room(context, least, best))
    return best


def _is_dynamic(context: Any) -> bool:
    wish = context.getConf().get("spark.dynamicAllocation.enabled", "false")
    return bool(wish.lower() == "true" and not is_local(context))


def _no_room(context: Any, tasks: int, most: int) -> str:
    cpus = context.getConf().get("spark.task.cpus", "1")
    return (
        f"{tasks} ranks were asked for, but Spark at {context.master} can run {most} tasks at once "
        f"(spark.task.cpus={cpus}), and each rank is a task: give num_proc={most} or less, or give "
        "Spark more executors or more cores (spark.executor.instances, spark.executor.cores, "
        "local[N]). Where executors come later than the session, let it wait for them by "
        "spark.scheduler.minRegisteredResourcesRatio=1.0"
    )
