"""Starting something on another host, by a remote shell such as ssh, or by `srun` (`slurm`).

What is started is an agent (`agent`), the same way everywhere: a shell there reads from its
standard input how. Nothing of that is secret, yet it is on no command line, which everybody on a
machine can read. The secret is told to the agent itself.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.launch.hosts import is_here
from lockstitch.launch.process import without_first_of_all
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

_PASSED_ON = re.compile(
    r"(HOROVOD|LOCKSTITCH|OMP|MKL|NCCL|GLOO|CUDA|TORCH|PYTORCH|PYTHON)_?\w*"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PATH|LD_LIBRARY_PATH"
    r"|VIRTUAL_ENV|CONDA_PREFIX"
)
_SECRET = (VARIABLE, FILE_VARIABLE)


# In braces, so that it is read to the end before anything of it runs: what comes next on the
# standard input is for the agent. What asks a worker a question (USR1) does it no harm.
_SCRIPT = """\
{{
trap "" USR1
{forgotten}
{exports}
cd {folder} || {{
  echo "there is no folder "{folder}" there, in which the workers are to run" >&2
  exit 1
}}
command -v {python} > /dev/null || {{
  echo "there is no Python at "{python}" there, by which the launcher runs here" >&2
  exit 1
}}
exec {python} -c {program}
}}
"""
# Without the working folder, where a module may be called as one of Python's is.
_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from lockstitch.launch.agent.host_agent import main; main()"
)


# A host that does not answer, or is cut off, is noticed as soon as by the workers themselves.
# Nor does it leave a process for later calls behind, whatever a user's settings say: the job would
# wait for that in the end, and end it.
_SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=3"),
    *("-o", "ControlMaster=no"),
)


@dataclass(frozen=True)
class RemoteShell:
    """A command that runs others on another host: `program` is called with the host and a command,
    as in `ssh -p 2222`."""

    program: tuple[str, ...] = _SSH
    forgotten: tuple[str, ...] = ()
    """Variables that the program gives what it starts, and that would mislead a worker."""

    def starts_on(self, host: str) -> bool:
        """Whether it starts the workers of `host`, which are else processes of this machine."""
        return not is_here(host)

    def address_of(self, host: str) -> str:
        """Returns the name or the address at which workers reach `host`."""
        return host

    def environment(self) -> dict[str, str]:
        """Returns the variables of the program itself."""
        return dict(os.environ)

    def command(self, host: str, environment: Mapping[str, str]) -> tuple[list[str], bytes]:
        """Returns what to run here so that an agent runs on `host`, and what to write to its
        standard input first. `environment`: variables of this host, of which the workers there get
        those that matter; not the secret, which the agent is told itself."""
        passed_on = {
            name: value
            for name, value in environment.items()
            if _PASSED_ON.fullmatch(name) and name not in _SECRET
        }
        if "PYTHONPATH" in passed_on:
            passed_on["PYTHONPATH"] = without_first_of_all(passed_on["PYTHONPATH"])
        script = _SCRIPT.format(
            forgotten=f"unset {' '.join(self.forgotten)}" if self.forgotten else ":",
            exports="\n".join(f"export {name}={shlex.quote(it)}" for name, it in passed_on.items()),
            folder=shlex.quote(os.getcwd()),
            python=shlex.quote(sys.executable),
            program=shlex.quote(_PROGRAM),
        )
        return [*self.program, host, "/bin/sh"], script.encode()
