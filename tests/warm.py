"""Programs begun from an interpreter that has imported torch already: a second saved for each.

`WarmInterpreter` starts one fresh Python, which imports what takes long and then, for each
program, copies itself; the copy is the program's process, and ends as any interpreter ends. What
the programs share is what they would all have imported first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

# Runs in the fresh interpreter. A copy leaves the loop and becomes `__main__` of its program.
_BEGIN = """
import json, os, runpy, sys, warnings
import cloudpickle, numpy, torch, torch._dynamo, torch.distributed.rpc
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    os._exit(0)
torch.set_num_threads(1)  # after a fork, torch may abort otherwise
os.chdir(order["folder"])
for number, name in enumerate(["/dev/null", order["output"], order["errors"]]):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
sys.argv = [order["script"]]
warnings.simplefilter("error")
runpy.run_path(order["script"], run_name="__main__")
"""


class Done(NamedTuple):
    """How a program ended, and what it said."""

    status: int
    output: str
    errors: str


class WarmInterpreter:
    """A context manager; `run` is for one program at a time."""

    def __enter__(self) -> WarmInterpreter:
        self._python = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def run(self, script: Path) -> Done:
        """Runs the script in its own folder, where files beside it take what it says."""
        output, errors = script.with_suffix(".out"), script.with_suffix(".err")
        order = {
            "script": str(script),
            "folder": str(script.parent),
            "output": str(output),
            "errors": str(errors),
        }
        print(json.dumps(order), file=self._pipe(self._python.stdin), flush=True)
        status = int(self._pipe(self._python.stdout).readline())
        return Done(status, output.read_text(), errors.read_text())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipe(self._python.stdin).close()
        self._pipe(self._python.stdout).close()
        if kind is not None:
            self._python.kill()
        self._python.wait()

    @staticmethod
    def _pipe(end: IO[str] | None) -> IO[str]:
        assert end is not None
        return end
