"""What runs in a worker's actor: it takes in where it is and the job's secret, and runs functions.

The secret comes with a call, so that it is neither in the environment of the process nor in
anything that Ray keeps of an actor. Here it lies in a file without a name, in memory, which is gone
with the process; the environment names only its number.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstitch.errors import RemoteError
from lockstitch.launcher_link.process import JOB, WorkerDismissed
from lockstitch.link.sockets import HeldPort
from lockstitch.ray.base_worker import BaseHorovodWorker
from lockstitch.ray.calls import Call
from lockstitch.ray.engine import find_ray
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker runs."""

    node: str
    """Ray's number of the node."""
    address: str
    """At which other nodes reach it."""
    process: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of an elastic worker's function: its value, or none of a worker that was sent
    away because there was no rank for it any more."""

    is_dismissed: bool
    value: Any


class InMemoryFile:
    """A secret as a file without a name that this process alone can open."""

    def __init__(self, text: str) -> None:
        self._descriptor = os.memfd_create("lockstitch-secret")
        os.fchmod(self._descriptor, 0o600)
        os.write(self._descriptor, text.encode())

    def __repr__(self) -> str:
        return f"<InMemoryFile {self.path}>"

    @property
    def path(self) -> str:
        """The name by which this process, or one that it has forked, opens the file."""
        return f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        """Lets go of it; harmless when repeated."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class HvdWorker(BaseHorovodWorker):
    """A rank's actor. Its methods run one after the other, in the main thread."""

    def __init__(self) -> None:  # its rank comes with `prepare`
        self._secret: InMemoryFile | None = None
        self._held: HeldPort | None = None

    def place(self) -> WorkerPlace:
        """Returns where it runs."""
        ray = find_ray()
        node = ray.get_runtime_context().get_node_id()
        return WorkerPlace(node, ray.util.get_node_ip_address(), os.getpid())

    def hold_port(self) -> int:
        """Returns a port that is held for this process until the next is asked for."""
        held = HeldPort()
        if self._held is not None:
            self._held.close()
        self._held = held
        return held.number

    def prepare(self, environment: Mapping[str, str], secret: str) -> None:
        """Leaves the job before, if any, and takes in the variables and the secret of the next."""
        JOB.close()
        if self._secret is not None:
            self._secret.close()
        self._secret = InMemoryFile(secret)
        os.environ.pop(VARIABLE, None)
        os.environ.update(environment)
        os.environ[FILE_VARIABLE] = self._secret.path

    def leave(self) -> None:
        """Leaves the job; harmless when repeated."""
        JOB.close()

    def begin(self, call: Call) -> None:
        """Makes the object that functions of `execute` are called with."""
        self.executable = call.function(*call.args, **call.kwargs)

    def execute(self, func: Call | Callable[[Any], Any]) -> Any:
        """Returns what a function returns, which is called with the object of `begin`."""
        call = func if isinstance(func, Call) else Call(func)
        with _leaving_on_error():
            return call.function(self.executable, *call.args, **call.kwargs)

    def run(self, call: Call) -> Any:
        """Returns what a function returns, which is called with its own arguments alone."""
        with _leaving_on_error():
            return call.function(*call.args, **call.kwargs)

    def live(self, call: Call, begin: Call | None, needs_executable: bool) -> Outcome:
        """Returns what has become of a function, in a job whose workers come and go. `begin` makes
        the object that it is called with, if it needs one."""
        if begin is not None:
            self.begin(begin)
        try:
            value = self.execute(call) if needs_executable else self.run(call)
        except WorkerDismissed:
            return Outcome(True, None)
        JOB.close()
        return Outcome(False, value)


@contextlib.contextmanager
def _leaving_on_error() -> Any:
    """A context manager after which this process has left its job where anything was raised: the
    other ranks, which may wait for it, are told by that. `sys.exit` would end the actor in good
    order, as Ray sees it; it is an error here, unless there is no rank for this worker any more."""
    try:
        yield
    except WorkerDismissed:
        JOB.close()
        raise
    except SystemExit as error:
        JOB.close()
        raise RemoteError(f"the function of a worker ended by sys.exit({error.code!r})") from error
    except BaseException:
        JOB.close()
        raise
