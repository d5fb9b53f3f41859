"""Starting a worker on another host, by a remote shell such as ssh.

What the worker must know goes there through the shell's standard input, never on a command line,
which everybody on a machine can read: the job's secret is among it. The input stays open as long as
the launcher lives; when it ends, so does the worker.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.launch.handover import with_text_of_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PASSED_ON = re.compile(
    r"(HOROVOD|LOCKSTITCH|OMP|MKL|NCCL|GLOO|CUDA|TORCH|PYTORCH|PYTHON)_?\w*"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PATH|LD_LIBRARY_PATH"
    r"|VIRTUAL_ENV|CONDA_PREFIX"
)


@dataclass(frozen=True)
class RemoteShell:
    """`program` is called with the host and a command: `ssh -p 2222` fits, and what is like it."""

    program: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")

    def command(
        self, host: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[list[str], bytes]:
        """What to run here, and what to write to its standard input."""
        known = with_text_of_secret(environment)  # its file is on this host alone
        passed_on = {name: value for name, value in known.items() if _PASSED_ON.fullmatch(name)}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in passed_on.items()]
        lines += [
            f"cd {shlex.quote(os.getcwd())} || exit 1",
            f"{shlex.join(command)} < /dev/null 3<&- &",
            "worker=$!",
            # The rest of the input: it ends with the launcher.
            "( cat > /dev/null; kill -TERM $worker 2> /dev/null ) <&3 &",
            "exec 3<&-",
            "wait $worker",
            "status=$?",
            "kill $! 2> /dev/null",
            "exit $status",
        ]
        # In braces, so that it is read to the end before anything of it runs.
        script = "exec 3<&0\n{\n" + "\n".join(lines) + "\n}\n"
        return [*self.program, host, "/bin/sh"], script.encode()
