"""`run`: a function on many ranks, which are tasks of Spark."""

from __future__ import annotations

import os
import re
import selectors
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import cloudpickle

from lockstitch.attach.logs import ProcessLog
from lockstitch.clock import SYSTEM_CLOCK, earliest
from lockstitch.errors import CollectiveError, SerializationError, StalledError
from lockstitch.spark.context import active_context, is_local, wait_for_room
from lockstitch.spark.desk import Desk, Outputs, RankFailure
from lockstitch.spark.jobs import SparkJob, what_spark_says
from lockstitch.spark.task import BarrierTask, TaskTerms
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_log = ProcessLog(__name__)

_START_TIMEOUT: Final = "HOROVOD_SPARK_START_TIMEOUT"
_START_SECONDS: Final = 600
# How long Spark may take to end what was cancelled.
_CANCEL_SECONDS: Final = 30.0
# How long what tasks have said last may be on its way.
_LAST_WORDS_SECONDS: Final = 2.0
_PASSED_ON: Final = re.compile(r"(HOROVOD|LOCKSTITCH|NCCL|GLOO|TORCH)_\w+")
_OF_THE_DRIVER: Final = re.compile(
    r"LOCKSTITCH_(SECRET|SECRET_FILE|ADDRESS|STORE|BOARD|WORKER|REACHED_AT)|TORCHELASTIC_\w+"
)


@dataclass(frozen=True)
class Wishes:
    """What a caller of `run` may choose of how ranks are run."""

    start_seconds: float
    environment: Mapping[str, str]
    outputs: Outputs
    executable: str | None = None


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    verbose: int = 1,
    nics: Sequence[str] | set[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Runs `fn(*args, **kwargs)` on `num_proc` ranks (default: `spark.default.parallelism`), each a
    process under a task of Spark, and returns what they returned, in the order of ranks. `fn` calls
    `hvd.init()` itself. All tasks begin together; those of one host have neighbouring ranks.

    Function, arguments and results go by cloudpickle. `start_timeout`: seconds for the tasks to
    begin (default: HOROVOD_SPARK_START_TIMEOUT, or 600). `env`: variables for the ranks, on top of
    those of Spark's executors and of this program's `HOROVOD_…`, `LOCKSTITCH_…`, `NCCL_…`, `GLOO_…`
    and `TORCH_…`. `stdout`, `stderr`: where the driver shows what ranks write, a line each, marked
    `[rank]<stdout>:` (default: its own); the executors' logs have it too. `nics`: the network
    interfaces to use. `executable`: another Python for the ranks. `verbose`: 0: no log of how many
    processes run. Without meaning here: `use_mpi`, `use_gloo`, `extra_mpi_args`.

    Raises `ImportError` without PySpark; `NotInitializedError` without an active SparkContext;
    `ValueError` for arguments that make no sense; `SerializationError` where `fn` or its arguments
    cannot be pickled; `StalledError`, which is a `TimeoutError` too, where the tasks do not begin
    in time; `HorovodInternalError` where Spark has no room for so many tasks, or a rank fails: its
    cause is then what the rank that failed first has raised.
    """
    if use_mpi and use_gloo:
        raise ValueError("give use_mpi or use_gloo, not both")
    context = active_context()
    ranks = number_of_ranks(context, num_proc)
    wishes = Wishes(
        start_seconds_of(start_timeout),
        environment_for_ranks(env, nics),
        Outputs(stdout, stderr, prefix_output_with_timestamp),
        executable,
    )
    call = pickled_call(fn, args, kwargs or {})
    if verbose:
        inferred = " (inferred from spark.default.parallelism)" if num_proc is None else ""
        _log.info("running %d processes%s", ranks, inferred)
    began_at = SYSTEM_CLOCK.now()
    wait_for_room(context, ranks, wishes.start_seconds, SYSTEM_CLOCK)
    return _Run(context, ranks, wishes).results(call, began_at + wishes.start_seconds)


def number_of_ranks(context: Any, given: int | None) -> int:
    """Returns how many ranks there are to be. Raises `ValueError` for what is no such number."""
    ranks = context.defaultParallelism if given is None else given
    if type(ranks) is not int or ranks < 1:
        raise ValueError(f"num_proc is a number of ranks, from 1 on, not {given!r}")
    return ranks


def start_seconds_of(given: float | None) -> float:
    """Returns how long tasks may take to begin. Raises `ValueError` for what is no such time."""
    return seconds_of(given, _START_TIMEOUT, _START_SECONDS)


def seconds_of(given: float | None, variable: str, default: float) -> float:
    """Returns a time that the program gives, or else a variable of the environment. Raises
    `ValueError` for what is no time."""
    value: object = os.environ.get(variable, default) if given is None else given
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"a timeout (or {variable}) is a time in seconds, not {value!r}")
    return seconds


def environment_for_ranks(
    env: Mapping[str, str] | None, nics: Sequence[str] | set[str] | str | None
) -> dict[str, str]:
    """Returns the variables that go to all ranks. Raises `ValueError` where `env` has others than
    texts."""
    given: Mapping[Any, Any] = env or {}
    wrong = {name: it for name, it in given.items() if not isinstance(it, str)}
    if wrong:
        raise ValueError(f"variables of the environment are texts, which {wrong} are not")
    chosen = {
        name: value
        for name, value in os.environ.items()
        if _PASSED_ON.fullmatch(name) and not _OF_THE_DRIVER.fullmatch(name)
    }
    if nics:
        names = [nics] if isinstance(nics, str) else sorted(nics)
        chosen |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), ",".join(names))
    return {**chosen, **(env or {})}


def pickled_call(fn: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Returns a call as `lockstitch.hvd.runner` reads it. Raises `SerializationError`."""
    try:
        return bytes(cloudpickle.dumps((fn, tuple(args), dict(kwargs))))
    except Exception as error:  # whatever a __reduce__ may raise
        name = getattr(fn, "__qualname__", repr(fn))
        raise SerializationError(
            f"{name} or what it is called with cannot be pickled for the ranks: {error}. What "
            "belongs to this process (a SparkContext, a lock, an open file) is to be made inside "
            "the function"
        ) from error


class _Run:
    """One call of `run`, from where Spark has room."""

    def __init__(self, context: Any, ranks: int, wishes: Wishes) -> None:
        self._context = context
        self._ranks = ranks
        self._wishes = wishes

    def results(self, call: bytes, deadline: float) -> list[Any]:
        """Returns what the ranks returned. The tasks are to have begun at `deadline`."""
        secret = Secret.make()
        with ExitStack() as resources:
            selector = resources.enter_context(selectors.DefaultSelector())
            desk = Desk(selector, secret, listening_address(self._context), self._wishes.outputs)
            resources.callback(desk.close)
            broadcast = resources.enter_context(broadcasting(self._context, call))
            terms = terms_of(self._context, broadcast, self._wishes, desk, secret)
            job = SparkJob(
                self._context,
                f"lockstitch.hvd.spark.run: {self._ranks} ranks",
                lambda: self._collect(BarrierTask(terms)),
            )
            resources.callback(job.close)
            try:
                self._follow(job, desk, selector, deadline)
            except BaseException:
                job.cancel()
                job.wait(_CANCEL_SECONDS)
                raise
            return self._values(job, desk)

    def _collect(self, work: BarrierTask) -> Any:
        tasks = self._context.parallelize(range(self._ranks), self._ranks)
        return tasks.barrier().mapPartitionsWithIndex(work).collect()

    def _follow(
        self, job: SparkJob, desk: Desk, selector: selectors.BaseSelector, deadline: float
    ) -> None:
        """Listens until the job is over and all has been heard. Raises `StalledError` where its
        tasks do not begin in time."""
        selector.register(job, selectors.EVENT_READ, job.wait)
        while not job.is_over:
            left = deadline - SYSTEM_CLOCK.now()
            if desk.started < self._ranks and left <= 0:
                raise too_late(desk.started, self._ranks, self._wishes.start_seconds)
            listen(desk, selector, left if desk.started < self._ranks else None)
        selector.unregister(job)
        last = SYSTEM_CLOCK.now() + _LAST_WORDS_SECONDS
        while not desk.is_quiet and (left := last - SYSTEM_CLOCK.now()) > 0:
            listen(desk, selector, left)

    def _values(self, job: SparkJob, desk: Desk) -> list[Any]:
        failure = desk.first_failure
        if job.error is None and failure is None:
            return [cloudpickle.loads(result) for _, result in sorted(job.value)]
        if isinstance(job.error, KeyboardInterrupt):
            raise job.error
        cause = None if failure is None else failure.error
        has_returned = desk.ended == self._ranks
        raise CollectiveError(_reason(failure, job.error, has_returned=has_returned)) from cause


def too_late(started: int, ranks: int, seconds: float) -> StalledError:
    """Returns the error of a job whose tasks have not begun in time."""
    return StalledError(
        f"Timed out waiting for Spark tasks to start: {started} of {ranks} ranks have begun within "
        f"{seconds:g} s. Please check that you have enough resources: each rank is a task, and "
        "other jobs may have the cores that they need. start_timeout (or "
        f"{_START_TIMEOUT}) says how long to wait"
    )


def _reason(failure: RankFailure | None, error: BaseException | None, *, has_returned: bool) -> str:
    """Returns in words why a job has failed, as its ranks have told it and Spark saw it."""
    if failure is None and has_returned:
        return (
            "the ranks have returned, but Spark has not brought what they returned to the driver: "
            "it goes through the JVMs of both (spark.driver.memory, spark.driver.maxResultSize). "
            "Have what is large written where the driver can read it. Spark says: "
            f"{what_spark_says(error) if error is not None else 'nothing'}"
        )
    text = "Horovod detected that one or more processes exited with non-zero status: "
    text += "the job ended before its ranks had begun" if failure is None else str(failure)
    if error is None or (failure is not None and not failure.is_unexplained):
        return text
    said = what_spark_says(error)
    if "No module named 'lockstitch'" in said:
        said += (
            "\nThe Python of Spark's executors is another than the driver's: install lockstitch "
            "there, or name one that has it by PYSPARK_PYTHON or spark.pyspark.python"
        )
    return f"{text}. Spark says: {said}"


def listen(desk: Desk, selector: selectors.BaseSelector, seconds: float | None) -> None:
    """Handles what has come, after at most so many seconds; None for any time."""
    for key, _ in selector.select(earliest(seconds, desk.server.seconds_to_next())):
        key.data()
    desk.server.pass_time()


@contextmanager
def broadcasting(context: Any, call: bytes) -> Iterator[Any]:
    """A context manager of a variable that Spark brings to all executors. Where Spark itself has
    ended, it is gone anyway."""
    broadcast = context.broadcast(call)
    try:
        yield broadcast
    finally:
        with suppress(Exception):
            broadcast.destroy()


def terms_of(context: Any, call: Any, wishes: Wishes, desk: Desk, secret: Secret) -> TaskTerms:
    """Returns what all tasks of a job are told."""
    return TaskTerms(
        call,
        wishes.environment,
        wishes.executable,
        address_for_tasks(context, desk.server.address),
        not is_local(context),
        secret.text(),
    )


def listening_address(context: Any) -> str:
    """Returns where the driver listens for its tasks, with port 0."""
    conf = context.getConf()
    host = conf.get("spark.driver.bindAddress") or conf.get("spark.driver.host")
    return f"tcp:{'127.0.0.1' if is_local(context) else host}:0"


def address_for_tasks(context: Any, listening: str) -> str:
    """Returns where tasks reach it: as executors reach the driver, which may be behind another
    address than it listens at."""
    if is_local(context):
        return listening
    port = listening.rpartition(":")[2]
    return f"tcp:{context.getConf().get('spark.driver.host')}:{port}"
