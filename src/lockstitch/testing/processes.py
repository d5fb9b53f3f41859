"""Several workers, each a process of its own on this machine: for what threads cannot show, such as
killing, forking, signals, and real sockets.

    with ProcessCluster(2) as cluster:
        assert cluster.run("worker0", rpc.rpc_sync, "worker1", torch.add, (1, 2)) == 3
        cluster.kill("worker1")

Each process calls `init_rpc`, then waits in its main thread for functions to run; calls of other
workers are served meanwhile. Functions and values travel by pickle over a pipe; those that no
module holds, by cloudpickle. Whatever happens, no process is left when the block is over.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import cloudpickle
import torch

from lockstitch import rpc
from lockstitch.errors import PeerDiedError, add_note
from lockstitch.folders import Folder
from lockstitch.runtime import remote_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from lockstitch.rpc.options import DeviceMap

T = TypeVar("T")

_END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _StartArguments:
    """What the process of a worker is started with."""

    name: str
    rank: int
    size: int
    init_method: str
    num_worker_threads: int
    rpc_timeout: float
    heartbeat_timeout: float | None
    device_maps: dict[str, Any]


@dataclass(slots=True)
class _MemberProcess:
    """The process of a worker, as the test sees it."""

    name: str
    process: BaseProcess
    pipe: Connection
    task: Task[Any] | None = None
    is_gone: bool = False


class Task(Generic[T]):
    """A function that runs on a worker; see `ProcessCluster.start`."""

    def __init__(self, member: _MemberProcess, timeout_seconds: float) -> None:
        self._member = member
        self._timeout_seconds = timeout_seconds

    def result(self, timeout_seconds: float | None = None) -> T:
        """Waits for the function and returns its value, or raises its exception; to be called once.

        Raises `PeerDiedError` when the process has died, `TimeoutError` when the time is over
        (default: that of the cluster).
        """
        member = self._member
        timeout = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            if not member.pipe.poll(timeout):
                raise TimeoutError(f"{member.name} is not done within {timeout} s")
            is_value, content = pickle.loads(member.pipe.recv_bytes())
        except (EOFError, ConnectionError) as error:
            member.process.join(_END_SECONDS)
            member.is_gone = True
            cause = f"its process has ended with exit code {member.process.exitcode}"
            raise PeerDiedError(member.name, cause) from error
        member.task = None
        if not is_value:
            raise remote_errors.rebuild(content)
        value: T = content
        return value


class ProcessCluster:
    """A context manager of worker processes.

    `size`: how many (2), named worker0, worker1, …, or their names. `start_method`: "spawn" begins
    each process afresh, which takes seconds; "fork" copies this one, which is quick, but sound only
    while no other threads run here, and before CUDA is used. `num_worker_threads`, `rpc_timeout`,
    `heartbeat_timeout` (both in seconds) and `device_maps`: as for `init_rpc`, the same for all.
    `timeout_seconds`: how long to wait for the start, and for each function by default (60).
    `prepare`: called first in each process, with its rank, while it has a single thread.

    Leaving the block shuts all workers down together; where one was killed or the block failed,
    each alone. One that is never left (in an interactive session, say) is killed when this process
    ends. Raises `RuntimeError` when processes had to be killed for that.
    """

    def __init__(  # noqa: PLR0913 - each is a keyword with a default
        self,
        size: int | Sequence[str] = 2,
        *,
        start_method: Literal["spawn", "fork"] = "spawn",
        num_worker_threads: int = 16,
        rpc_timeout: float = 60.0,
        heartbeat_timeout: float | None = None,
        device_maps: Mapping[str, DeviceMap] | None = None,
        timeout_seconds: float = 60.0,
        prepare: Callable[[int], None] | None = None,
    ) -> None:
        self.names = [f"worker{rank}" for rank in range(size)] if isinstance(size, int) else [*size]
        self._context = multiprocessing.get_context(start_method)
        self._num_worker_threads = num_worker_threads
        self._timeouts = rpc_timeout, heartbeat_timeout
        self._device_maps = {to: dict(map_) for to, map_ in (device_maps or {}).items()}
        self._timeout_seconds = timeout_seconds
        self._prepare = prepare
        self._members: dict[str, _MemberProcess] = {}
        self._folder: Folder | None = None
        self._owner = os.getpid()

    def __repr__(self) -> str:
        living = sum(member.process.is_alive() for member in self._members.values())
        return f"<ProcessCluster of {len(self.names)} · {living} alive>"

    def __enter__(self) -> ProcessCluster:
        self._folder = Folder()
        self._owner = os.getpid()
        # multiprocessing's own handler, which waits for the processes, is older and comes later.
        atexit.register(self._kill_own)
        try:
            for rank, name in enumerate(self.names):
                self._members[name] = self._launch(name, rank)
            self._await_start()
        except BaseException:
            self._kill_all()
            raise
        return self

    def _await_start(self) -> None:
        """Waits for the start of all processes, in the order in which they are ready: when one has
        failed, the others may wait for it in vain."""
        deadline = time.monotonic() + self._timeout_seconds
        waiting = {member.pipe: member.task for member in self._members.values()}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            for pipe in ready or list(waiting):
                task = waiting.pop(pipe)  # type: ignore[call-overload]
                task.result(0)

    def _launch(self, name: str, rank: int) -> _MemberProcess:
        assert self._folder is not None
        init_method = (self._folder.path / "store").as_uri()
        options = self._num_worker_threads, *self._timeouts, self._device_maps
        arguments = _StartArguments(name, rank, len(self.names), init_method, *options)
        near, far = self._context.Pipe()
        # A forked process inherits our ends: as long as it held them, others would not see us go.
        ours = [near, *(member.pipe for member in self._members.values())]
        is_fork = self._context.get_start_method() == "fork"
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_live,
            args=(arguments, far, ours if is_fork else [], self._prepare),
            name=name,
        )
        process.start()
        far.close()
        member = _MemberProcess(name, process, near)
        member.task = Task(member, self._timeout_seconds)
        return member

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None:
                self._collect_tasks()
                self._end(graceful=not any(each.is_gone for each in self._members.values()))
            else:
                self._end(graceful=False)
        finally:
            self._kill_all()

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    # ------------------------------------------------------------ running functions

    def run(self, name: str | int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs `function` in the main thread of that worker; returns its value or raises its
        exception. See `Task.result` for what else it raises."""
        return self.start(name, function, *args, **kwargs).result()

    def start(
        self, name: str | int, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> Task[T]:
        """Like `run`, but returns at once. A worker runs one function at a time: raises
        `RuntimeError` when the result of the last one was not asked for yet."""
        member = self._member(name)
        if member.task is not None:
            raise RuntimeError(f"{member.name} is busy: ask for the result of its task first")
        task: Task[T] = Task(member, self._timeout_seconds)
        stream = cloudpickle.dumps((function, args, kwargs), 5)
        member.task = task
        with contextlib.suppress(ConnectionError):  # it has died, as the result will tell
            member.pipe.send_bytes(stream)
        return task

    def run_all(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> list[T]:
        """Runs `function` on all workers at once; returns their values in the order of ranks."""
        tasks = [self.start(name, function, *args, **kwargs) for name in self.names]
        return _results(tasks, time.monotonic() + self._timeout_seconds)

    # ------------------------------------------------------------ processes

    def pid(self, name: str | int) -> int:
        """Returns the process id of a worker."""
        pid = self._member(name).process.pid
        assert pid is not None
        return pid

    def kill(self, name: str | int) -> None:
        """Kills the worker's process; returns when it has ended."""
        member = self._member(name)
        member.is_gone = True
        member.process.kill()
        member.process.join()

    def stop(self, name: str | int) -> None:
        """Stops the worker's process, with its connections open, until `go_on`."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def go_on(self, name: str | int) -> None:
        """Ends a `stop`."""
        os.kill(self.pid(name), signal.SIGCONT)

    def interrupt(self, name: str | int) -> None:
        """Interrupts the function that the worker runs, as Ctrl-C does."""
        os.kill(self.pid(name), signal.SIGINT)

    def _member(self, name: str | int) -> _MemberProcess:
        return self._members[self.names[name] if isinstance(name, int) else name]

    # ------------------------------------------------------------ the end

    def _collect_tasks(self) -> None:
        for member in self._members.values():
            if member.task is not None and not member.is_gone:
                member.task.result()

    def _end(self, *, graceful: bool) -> None:
        """Has every worker that can listen shut down, and waits for the processes."""
        deadline = time.monotonic() + _END_SECONDS
        leaving = []
        for member in self._members.values():
            if member.is_gone:
                continue
            if member.task is None:
                leaving.append(self.start(member.name, _leave, graceful))
            else:
                member.is_gone = True  # it is busy, and nobody waits for it any more
        _results(leaving, deadline)
        for member in self._members.values():
            member.pipe.close()
        stubborn = []
        for member in self._members.values():
            if not member.is_gone:
                member.process.join(max(0.0, deadline - time.monotonic()))
                if member.process.is_alive():
                    stubborn.append(member.name)
        if stubborn:
            raise RuntimeError(f"{', '.join(stubborn)} did not end within {_END_SECONDS} s")

    def _kill_own(self) -> None:
        """Kills the processes, unless this is a forked child, whose siblings they are."""
        if os.getpid() == self._owner:
            self._kill_all()

    def _kill_all(self) -> None:
        atexit.unregister(self._kill_own)
        for member in self._members.values():
            member.pipe.close()
            member.process.kill()
        for member in self._members.values():
            member.process.join()
            member.process.close()
        self._members.clear()
        if self._folder is not None:
            self._folder.close()


def _results(tasks: Sequence[Task[T]], deadline: float) -> list[T]:
    """Returns the values of all tasks. When some have failed, raises the first error, with the
    others as its notes."""
    values: list[T] = []
    errors: list[Exception] = []
    for task in tasks:
        try:
            values.append(task.result(max(0.0, deadline - time.monotonic())))
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if errors:
        for other in errors[1:]:
            add_note(errors[0], f"and also: {other!r}")
        raise errors[0]
    return values


# ---------------------------------------------------------------- in the worker's process


def _live(
    arguments: _StartArguments,
    pipe: Connection,
    inherited: Sequence[Connection],
    prepare: Callable[[int], None] | None,
) -> None:
    """Runs a worker: joins the group, then runs functions until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the functions that run here
    for end in inherited:
        end.close()
    torch.set_num_threads(1)  # after a fork, torch may abort otherwise
    _answer(pipe, lambda: _join(arguments, prepare))
    while True:
        try:
            function, args, kwargs = pickle.loads(pipe.recv_bytes())
        except EOFError:  # the test is over, or its process gone
            break
        _answer(pipe, lambda: function(*args, **kwargs))  # noqa: B023 - called at once
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


def _join(arguments: _StartArguments, prepare: Callable[[int], None] | None) -> None:
    if prepare is not None:
        prepare(arguments.rank)
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=arguments.num_worker_threads,
        rpc_timeout=arguments.rpc_timeout,
        heartbeat_timeout=arguments.heartbeat_timeout,
        init_method=arguments.init_method,
        device_maps=arguments.device_maps,
    )
    rpc.init_rpc(
        arguments.name, rank=arguments.rank, world_size=arguments.size, rpc_backend_options=options
    )


def _answer(pipe: Connection, function: Callable[[], object]) -> None:
    """Sends what `function` returns or raises; only it can be interrupted."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            value = function()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        stream = cloudpickle.dumps((True, value), 5)
    except BaseException as error:  # noqa: BLE001 - raised where the test waits
        name = multiprocessing.current_process().name
        stream = pickle.dumps((False, remote_errors.describe(error, name)), 5)
    with contextlib.suppress(ConnectionError):  # nobody is there any more
        pipe.send_bytes(stream)


def _leave(graceful: bool) -> None:
    rpc.shutdown(graceful=graceful)
