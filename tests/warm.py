"""Programs begun from an interpreter that has imported torch and Lockstitch already: two seconds
saved for each process.

`WarmInterpreter` starts one fresh Python, which imports what takes long and then, for each process
of a program, copies itself; the copy is the program's process, and ends as any interpreter ends.
What the programs share is what they would all have imported first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, NamedTuple

from lockstitch.launch.handover import secret_for
from lockstitch.launch.meeting import MeetingPlace
from lockstitch.launch.process import worker_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

# Runs in the fresh interpreter. A copy leaves the loop and becomes `__main__` of its program.
_BEGIN = """
import gc, importlib.util, json, os, runpy, sys, warnings
with warnings.catch_warnings():
    warnings.simplefilter("error")
    import cloudpickle, numpy, torch, torch._dynamo, torch.distributed.rpc
    import lockstitch.checkpoint, lockstitch.hvd, lockstitch.nn, lockstitch.optim
    import lockstitch.testing
    if importlib.util.find_spec("sklearn"):
        import sklearn.datasets
gc.freeze()  # else the end of each copy would look at all that was imported, a second long

def begun(orders):
    pids = []
    for order in orders:
        pid = os.fork()
        if pid == 0:
            return order
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(codes), flush=True)

for line in sys.stdin:
    order = begun(json.loads(line))
    if order is not None:
        break
else:
    os._exit(0)
torch.set_num_threads(1)  # after a fork, torch may abort otherwise
os.chdir(order["folder"])
os.environ.update(order["environment"])
for number, name in enumerate(["/dev/null", order["output"], order["errors"]]):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
sys.argv = [order["script"], *order["arguments"]]
sys.path[0] = os.path.dirname(order["script"])
if order["is_strict"]:
    warnings.simplefilter("error")
runpy.run_path(order["script"], run_name="__main__")
"""


_END_SECONDS = 10.0


class Done(NamedTuple):
    """How a process ended, and what it said."""

    status: int
    output: str
    errors: str


class WarmInterpreter:
    """A context manager, for one program at a time. Where it `is_strict`, a warning is an error."""

    def __enter__(self) -> WarmInterpreter:
        self._python = subprocess.Popen(
            [sys.executable, "-c", _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def run(self, script: Path, folder: Path, arguments: Sequence[str] = ()) -> Done:
        """Runs the script as `python` does, in its own folder; what it says is kept in `folder`."""
        (done,) = self.run_all(script, folder, [{}], arguments)
        return done

    def run_ranks(
        self,
        script: Path,
        folder: Path,
        workers: int,
        arguments: Sequence[str] = (),
        is_strict: bool = True,
    ) -> list[Done]:
        """Runs it as so many workers, each told what `lockstitch run` tells it; rank by rank."""
        with ExitStack() as resources:
            inherited = {**os.environ, **resources.enter_context(secret_for(os.environ))}
            meeting = resources.enter_context(MeetingPlace())
            told = [
                worker_environment(rank, workers, meeting, inherited) for rank in range(workers)
            ]
            return self.run_all(script, folder, told, arguments, is_strict)

    def run_all(
        self,
        script: Path,
        folder: Path,
        environments: Sequence[Mapping[str, str]],
        arguments: Sequence[str] = (),
        is_strict: bool = True,
    ) -> list[Done]:
        """Runs a process of the script for each environment, all at once."""
        files = [
            (folder / f"{each}.out", folder / f"{each}.err") for each in range(len(environments))
        ]
        orders = [
            {
                "script": str(script),
                "arguments": arguments,
                "is_strict": is_strict,
                "folder": str(script.parent),
                "environment": environment,
                "output": str(output),
                "errors": str(errors),
            }
            for environment, (output, errors) in zip(environments, files, strict=True)
        ]
        print(json.dumps(orders), file=self._pipe(self._python.stdin), flush=True)
        statuses = json.loads(self._pipe(self._python.stdout).readline())
        return [
            Done(status, output.read_text(), errors.read_text())
            for status, (output, errors) in zip(statuses, files, strict=True)
        ]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipe(self._python.stdin).close()
        self._pipe(self._python.stdout).close()
        try:
            self._python.wait(0 if kind is not None else _END_SECONDS)
        except subprocess.TimeoutExpired:  # a program hangs
            os.killpg(self._python.pid, signal.SIGKILL)
            self._python.wait()

    @staticmethod
    def _pipe(end: IO[str] | None) -> IO[str]:
        assert end is not None
        return end
