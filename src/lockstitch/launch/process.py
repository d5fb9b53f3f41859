"""A worker as a process of this machine: its environment, how it starts, how it is ended.

Each worker leads a session of its own. So a Ctrl-C at the terminal reaches the launcher alone,
which passes it on once, and a signal to a worker reaches what the worker started too (the processes
of a `DataLoader`, say). What survives its parent is adopted by the launcher, and a worker whose
launcher vanishes is killed by the kernel: whichever end goes first, nothing stays behind. (Adoption
and the kernel's help exist on Linux only.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from lockstitch.inquiry import catches
from lockstitch.launcher_link.fixed_ranks import WorkerRanks, variables_of_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lockstitch.launch.meeting import MeetingPlace

GRACE_SECONDS = 5.0
"""How long a worker may take to obey a signal before it gets a stronger one."""

THREADS = "OMP_NUM_THREADS"
"""The variable for how many threads a worker's arithmetic takes."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

_OF_A_FIXED_WORLD = (
    "RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTITCH_STORE HOROVOD_RANK "
    "HOROVOD_SIZE HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE"
).split()

_FIRST = str(Path(__file__).parent / "first")

# Loaded here, since between fork and exec a child should do as little as possible.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Worker(Protocol):
    """A worker as its job sees it: a process of this machine, or one elsewhere."""

    @property
    def rank(self) -> int:
        """Its rank; in an elastic job its number."""
        ...

    @property
    def host(self) -> str:
        """Where it runs, if that is elsewhere; else empty."""
        ...

    @property
    def pid(self) -> int:
        """The number of its process on its host; 0 while that is not known."""
        ...

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, the negative number of a signal that ended it."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP, a debugger); False where the system does not tell."""
        ...

    @property
    def why(self) -> str:
        """What the kernel of its host says of it, where SIGKILL has ended it; empty if nothing."""
        ...

    def describe_end(self) -> str:
        """Returns how it has ended, and on which host if that is another one; `runs` before."""
        ...

    def ask_what_it_waits_for(self) -> bool:
        """Passes SIGUSR1 on, to the worker alone; False where it has no handler for it."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the worker and what it started; harmless when it has ended."""
        ...


class WorkerProcess:
    """The process of worker `rank`, started at once; its output waits in two pipes, its standard
    input is empty."""

    host: Final = ""
    why: Final = ""  # this host's kernel is asked when a job has failed

    def __init__(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.rank = rank
        launcher = os.getpid()
        self._popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=lambda: _die_with(launcher),
        )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.stdout = self._popen.stdout
        self.stderr = self._popen.stderr

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.rank} · pid {self.pid} · {self.describe_end()}>"

    def describe_end(self) -> str:
        """See `Worker`."""
        return "runs" if self.exit_code is None else describe_exit(self.exit_code)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """See `Worker`."""
        return self._popen.returncode

    def note_end(self, wait_status: int) -> int:
        """Takes in what `os.waitpid` said of this process; returns the exit code."""
        self._popen.returncode = code = os.waitstatus_to_exitcode(wait_status)
        return code

    @property
    def is_stopped(self) -> bool:
        """See `Worker`."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def ask_what_it_waits_for(self) -> bool:
        """See `Worker`."""
        if not catches(self.pid, signal.SIGUSR1):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        return True

    def signal(self, number: signal.Signals) -> None:
        """See `Worker`."""
        # It has ended by itself, or belongs to another user by now (`sudo`).
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def worker_environment(
    rank: int, world_size: int, meeting: MeetingPlace, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables that `init_method="env://"` reads, on top of the launcher's own."""
    here = WorkerRanks(rank, world_size, "localhost", rank, world_size, 0, 1)
    environment = environment_among_hosts(here, ("127.0.0.1", meeting.port), inherited)
    environment["LOCKSTITCH_STORE"] = meeting.store
    return environment


def environment_among_hosts(
    ranks: WorkerRanks, master: tuple[str, int], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the same where the workers meet at an address and a port only."""
    return with_defaults(variables_of_ranks(ranks, master), ranks.local_size, inherited)


def elastic_environment(
    told: Mapping[str, str], workers_here: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables of a worker that will be told its rank later, and perhaps another after
    that. `told`: what it is told at the beginning; it says only where the worker runs."""
    return with_defaults(told, workers_here, without_ranks(inherited))


def without_ranks(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns variables without those that speak of a world whose workers do not change."""
    return {name: value for name, value in inherited.items() if name not in _OF_A_FIXED_WORLD}


def with_defaults(
    told: Mapping[str, str], workers_here: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables of a worker. `told`: its own; `inherited`: those of whoever starts it;
    `workers_here`: how many share the cores of this machine, so that each gets its part of them for
    arithmetic, unless it is told otherwise. What a worker prints is not held back, and one that
    crashes says where."""
    defaults = {
        THREADS: str(max(1, _usable_cores() // max(1, workers_here))),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    return {**defaults, **inherited, **told, **_first_of_all(inherited)}


def without_first_of_all(path: str) -> str:
    """Returns a PYTHONPATH without the folder that only workers of this machine begin with."""
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if folder != _FIRST)


def describe_exit(code: int) -> str:
    """Returns how a process ended, such as `exit code 3` or `killed by SIGSEGV`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has a number but no name
        return f"killed by signal {-code}"


def exit_status(code: int) -> int:
    """Returns what a shell reports for a process that ended so: 128 + n for signal n."""
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def orphans_adopted() -> Iterator[None]:
    """Within, processes that lose their parent become children of this one."""
    if _LIBC is None:
        yield
        return
    before = ctypes.c_int()
    _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def child_pids() -> list[int]:
    """Returns the children of this process, adopted ones included; none where the system does not
    tell."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for children in lists for pid in children.read_text().split()]


def _die_with(launcher: int) -> None:
    """Has the kernel kill this process when the launcher ends; runs in the child before its
    program."""
    # Until Python runs in it, and where it does not, somebody who asks does no harm.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it ended before we asked
            os._exit(1)


def _first_of_all(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns a PYTHONPATH by which each Python of a worker begins with `first/sitecustomize`."""
    others = inherited.get("PYTHONPATH", "")
    if others.split(os.pathsep)[0] == _FIRST:  # a launcher started by a launcher
        return {}
    return {"PYTHONPATH": f"{_FIRST}{os.pathsep}{others}" if others else _FIRST}


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
