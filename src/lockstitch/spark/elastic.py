"""`run_elastic`: a function on ranks that come and go, each a job of Spark with one task.

The `Conductor` decides who has which rank, as under `lockstitch run`; here its workers are started
as jobs of Spark, which places each where a core is free. A task that ends is not tried again by
Spark: another worker takes its place. A *slot* is a task that Spark can run beside the others;
where it runs is known when the task has reported.
"""

from __future__ import annotations

import selectors
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final

import cloudpickle

from lockstitch.attach.logs import ProcessLog
from lockstitch.clock import SYSTEM_CLOCK, earliest
from lockstitch.errors import CollectiveError
from lockstitch.launch.process import elastic_environment
from lockstitch.launcher_link.client import ADDRESS, REACHED_AT
from lockstitch.launcher_link.conductor import Conductor, NewWorld, Surroundings
from lockstitch.launcher_link.rank_coordinator import CoordinatorOptions, Ended, HostsFound
from lockstitch.link.addresses import with_port
from lockstitch.link.machine import host_identity
from lockstitch.rendezvous.reaching import say
from lockstitch.spark.context import (
    active_context,
    is_local,
    pyspark,
    room_to_come,
    settled_room,
)
from lockstitch.spark.desk import Desk, Outputs
from lockstitch.spark.jobs import SparkJob
from lockstitch.spark.reports import Reports, Running
from lockstitch.spark.running import (
    Wishes,
    address_for_tasks,
    broadcasting,
    environment_for_ranks,
    listen,
    listening_address,
    number_of_ranks,
    pickled_call,
    seconds_of,
    start_seconds_of,
    terms_of,
    too_late,
)
from lockstitch.spark.task import TaskTerms, check_attempt, devices_of
from lockstitch.trust import Secret

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lockstitch.launcher_link.slots import Slot

_log = ProcessLog(__name__)

_ELASTIC_TIMEOUT: Final = "HOROVOD_ELASTIC_TIMEOUT"
_ELASTIC_SECONDS: Final = 600
# How often Spark is asked how many tasks it can run.
_LOOK_SECONDS: Final = 1.0
_CANCEL_SECONDS: Final = 30.0
# What a rank's process may take to import torch and come, once its task has begun.
_COMING_SECONDS: Final = 30.0


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    verbose: int = 1,
    nics: Sequence[str] | set[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Runs `fn(*args, **kwargs)` on ranks that come and go, each a process under a task of Spark,
    and returns what the ranks of the last world returned, in their order. `fn` trains within
    `hvd.elastic.run`.

    It begins with `num_proc` ranks (default: `spark.default.parallelism`), or, where Spark has no
    room for so many, with at least `min_num_proc` (default: `num_proc`), and grows to
    `max_num_proc` (default: `num_proc`) while Spark has room. A rank that dies is replaced; the
    others go on from the last commit as long as they are `min_num_proc`. `elastic_timeout`: seconds
    for enough of them to come again (default: HOROVOD_ELASTIC_TIMEOUT, or 600). `reset_limit`: how
    often the ranks may meet anew. `min_np`, `max_np`: older names. Lines that ranks write, and
    errors, have the number of the worker, which stays when its rank changes. The other arguments,
    and what is raised, are as in `run`; `HorovodInternalError` also where too few ranks are left,
    and where not all ranks of the last world have returned something.
    """
    context = active_context()
    least = min_np if min_num_proc is None else min_num_proc
    most = max_np if max_num_proc is None else max_num_proc
    wanted = number_of_ranks(context, num_proc)
    least, most = wanted if least is None else least, wanted if most is None else most
    if not 1 <= least <= wanted <= most:
        raise ValueError(
            f"min_num_proc={least}, num_proc={wanted} and max_num_proc={most} are not in order"
        )
    wishes = Wishes(
        start_seconds_of(start_timeout),
        environment_for_ranks(env, nics),
        Outputs(stdout, stderr, prefix_output_with_timestamp),
    )
    elastic_seconds = seconds_of(elastic_timeout, _ELASTIC_TIMEOUT, _ELASTIC_SECONDS)
    call = pickled_call(fn, args, kwargs or {})
    there = settled_room(context, wanted, least, wishes.start_seconds, SYSTEM_CLOCK)
    if verbose:
        _log.info("running %d to %d processes, %d at first", least, most, min(wanted, there))
    options = CoordinatorOptions(
        wanted=max(least, min(wanted, there)),
        min_workers=least,
        max_workers=most,
        reset_limit=reset_limit,
        start_seconds=wishes.start_seconds + _COMING_SECONDS,
        elastic_seconds=elastic_seconds,
        is_fixed=is_local(context),
    )
    return _ElasticRun(context, options, wishes).results(call)


@dataclass(frozen=True)
class ElasticTask:
    """The task of a worker; Spark carries it to an executor. `told`: what the conductor tells the
    worker."""

    terms: TaskTerms
    worker: int
    told: Mapping[str, str]

    def __call__(self, _task: int, _rows: Iterable[object]) -> Iterator[bytes]:
        """Yields what the worker returned, pickled; nothing where it was needed no longer. Raises
        `CollectiveError` where it fails."""
        context = pyspark().TaskContext.get()
        check_attempt(context)
        with Reports(self.terms.driver, self.terms.secret, self.worker) as reports:
            here = reports.own_host
            reports.tell(Running(self.worker, here))
            # Ranks that share a host find that out, and then memory to share.
            told = {**self.told, REACHED_AT: here, "HOROVOD_HOSTNAME": host_identity()}
            inherited = self.terms.inherited(devices_of(context))
            ended = self.terms.run(reports, elastic_environment(told, 1, inherited))
        if ended.result is not None:
            yield ended.result
        elif not ended.is_in_order:
            raise CollectiveError(
                f"worker {self.worker} has failed: {ended.how}\n{ended.last_words}"
            )


@dataclass
class _Worker:
    """A worker as its starter knows it."""

    slot: Slot
    job: SparkJob | None = None
    has_ended: bool = False


@dataclass
class TaskStarter:
    """Starts workers as jobs of Spark: the `Starter` of a conductor, to which `post` tells of their
    ends. `task_of` makes the task of a worker."""

    context: Any
    task_of: Callable[[int, Mapping[str, str]], Callable[..., Any]]
    post: Callable[[Ended], None]
    results: dict[int, bytes] = field(default_factory=dict)
    """What workers have returned, pickled."""
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _ending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def slots_in_use(self) -> list[str]:
        """The hosts of the slots of workers whose ends have not been posted, by their names."""
        with self._ending:
            return [each.slot.host for each in self._workers.values() if not each.has_ended]

    def start(self, worker: int, slot: Slot, environment: Mapping[str, str]) -> None:
        """See `Starter`."""
        started = self._workers[worker] = _Worker(slot)
        task = self.task_of(worker, environment)
        try:
            started.job = SparkJob(
                self.context,
                f"lockstitch.hvd.spark.run_elastic: worker {worker}",
                partial(self._run, worker, task),
            )
        except Exception:  # noqa: BLE001 - the context was stopped: whatever its JVM makes of that
            self.note_end(worker, is_well=False)

    def stop(self, worker: int, number: signal.Signals) -> None:  # noqa: ARG002 - of a Starter
        """See `Starter`. Spark knows one way to end a task, whatever the signal."""
        job = self._workers[worker].job
        if job is not None:
            job.cancel()

    def note_end(self, worker: int, *, is_well: bool) -> None:
        """Takes in that a worker has ended, from whoever sees it first; from any thread."""
        known = self._workers[worker]
        with self._ending:  # whoever sees the slot free has the end posted before
            if not known.has_ended:
                known.has_ended = True
                self.post(Ended(worker, is_well))

    def close(self) -> None:
        """Ends all that still runs."""
        jobs = [each.job for each in self._workers.values() if each.job is not None]
        for job in jobs:
            if not job.is_over:
                job.cancel()
        for job in jobs:
            job.wait(_CANCEL_SECONDS)
            job.close()

    def _run(self, worker: int, task: Callable[..., Any]) -> None:
        is_well = False
        try:
            rows = self.context.parallelize(range(1), 1).mapPartitionsWithIndex(task).collect()
            self.results.update((worker, result) for result in rows)
            is_well = True
        finally:
            self.note_end(worker, is_well=is_well)


class _ElasticRun:
    """One call of `run_elastic`."""

    def __init__(self, context: Any, options: CoordinatorOptions, wishes: Wishes) -> None:
        self._context = context
        self._options = options
        self._wishes = wishes
        self._found: tuple[tuple[str, int], ...] = ()

    def results(self, call: bytes) -> list[Any]:
        """Returns what the ranks of the last world returned."""
        secret = Secret.make()
        context = self._context
        with ExitStack() as resources:
            selector = resources.enter_context(selectors.DefaultSelector())
            address = listening_address(context)
            desk = Desk(selector, secret, address, self._wishes.outputs, "worker")
            resources.callback(desk.close)
            broadcast = resources.enter_context(broadcasting(context, call))
            terms = terms_of(context, broadcast, self._wishes, desk, secret)

            def task_of(worker: int, told: Mapping[str, str]) -> ElasticTask:
                place = {ADDRESS: address_for_tasks(context, told[ADDRESS])}
                return ElasticTask(terms, worker, {**told, **place})

            def meet_at(world: NewWorld) -> str:
                return f"tcp://{with_port(desk.host_of(world.workers[0]), world.port)}"

            starter = TaskStarter(context, task_of, lambda ended: conductor.post(ended))
            surroundings = Surroundings(address, meet_at, selector, tell_of_wait=say)
            conductor = Conductor(self._options, secret, starter, surroundings)
            resources.callback(conductor.close)
            resources.callback(starter.close)
            desk.on_end = lambda worker: starter.note_end(worker, is_well=False)
            self._conduct(conductor, starter, desk, selector)
            reason = conductor.reason or conductor.missing_results(starter.results)
            if reason:
                failure = desk.first_failure
                cause = None if failure is None else failure.error
                text = "" if failure is None else f": {failure}"
                raise CollectiveError(f"the job has failed: {reason}{text}") from cause
        return [cloudpickle.loads(starter.results[worker]) for worker in conductor.last_world]

    def _conduct(
        self,
        conductor: Conductor,
        starter: TaskStarter,
        desk: Desk,
        selector: selectors.BaseSelector,
    ) -> None:
        look_at, least = 0.0, self._options.min_workers
        deadline = SYSTEM_CLOCK.now() + self._wishes.start_seconds
        while not conductor.is_over:
            now = SYSTEM_CLOCK.now()
            if desk.started < least and now >= deadline:
                raise too_late(desk.started, least, self._wishes.start_seconds)
            if now >= look_at:
                self._look_for_room(conductor, starter)
                look_at = now + _LOOK_SECONDS
            listen(desk, selector, earliest(conductor.seconds_to_next(), look_at - now))
            conductor.pass_time()

    def _look_for_room(self, conductor: Conductor, starter: TaskStarter) -> None:
        """Tells the conductor of as many slots as Spark has room for. Those in use stay: when an
        executor is lost, its tasks tell by their end which they were."""
        count = room_to_come(self._context, self._options.max_workers or 1)
        hosts = starter.slots_in_use
        free = (f"task{number}" for number in range(count + len(hosts)))
        hosts += [host for host in free if host not in hosts][: max(0, count - len(hosts))]
        found = tuple((host, 1) for host in sorted(hosts, key=lambda host: (len(host), host)))
        if found != self._found:
            self._found = found
            conductor.post(HostsFound(found))
