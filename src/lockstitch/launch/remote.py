"""Starting a worker on another host, by a remote shell such as ssh, or by `srun` (`slurm`).

What the worker must know goes there through the shell's standard input, never on a command line,
which everybody on a machine can read: the job's secret is among it. The input stays open as long as
the launcher lives, and takes signals for the worker, which thus may say its last words; when it
ends, so does the worker.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.launch.handover import with_text_of_secret
from lockstitch.launch.hosts import is_here
from lockstitch.launch.process import GRACE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PASSED_ON = re.compile(
    r"(HOROVOD|LOCKSTITCH|OMP|MKL|NCCL|GLOO|CUDA|TORCH|PYTORCH|PYTHON)_?\w*"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PATH|LD_LIBRARY_PATH"
    r"|VIRTUAL_ENV|CONDA_PREFIX"
)


# What asks the worker a question (USR1) is for it alone, and ignored until it listens.
# The worker leads a group of its own, so that signals reach what it has started too, and what that
# leaves behind is ended as it is on this machine: a moment later, and then for good. Without
# `setsid` they reach the worker alone.
# Slurm sends SIGTERM to each process of a step, and ends all of them with the first one, which is
# this shell: so it stays until the worker has ended.
_SCRIPT = """\
exec 3<&0
{{
{forgotten}
{exports}
{threads}
cd {folder} || exit 1
trap "" USR1
trap : TERM
tell() {{
  if [ "$1" != USR1 ]; then kill "-$1" "-$worker" && return; fi
  kill "-$1" "$worker"
}} 2> /dev/null
$(command -v setsid) {command} < /dev/null 3<&- &
worker=$!
# The rest of the input: names of signals, a line each. It ends with the launcher.
{{
  trap "" TERM
  while read -r name; do tell "$name"; done
  tell TERM
  sleep {grace}
  tell KILL
}} <&3 > /dev/null 2>&1 &
listener=$!
exec 3<&-
wait "$worker"
status=$?
# A signal ends `wait`, too.
while [ "$status" -gt 128 ] && kill -0 "$worker" 2> /dev/null; do
  wait "$worker"
  status=$?
done
for name in TERM KILL; do
  left={grace}
  while [ "$left" -gt 0 ] && kill -0 "-$worker"; do sleep 1; left=$((left - 1)); done
  kill "-$name" "-$worker"
done 2> /dev/null
kill -KILL "$listener" 2> /dev/null
exit "$status"
}}
"""


# The worker's share of the cores of its host, unless somebody has said something there.
_SHARE_OF_CORES = """\
if [ -z "$OMP_NUM_THREADS" ]; then
  cores=$(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN 2> /dev/null || echo 1)
  OMP_NUM_THREADS=$((cores / {workers}))
  if [ "$OMP_NUM_THREADS" -lt 1 ]; then OMP_NUM_THREADS=1; fi
  export OMP_NUM_THREADS
fi"""


# A host that does not answer, or is cut off, is noticed as soon as by the workers themselves.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=3")


@dataclass(frozen=True)
class RemoteShell:
    """A command that runs others on another host: `program` is called with the host and a command,
    as in `ssh -p 2222`."""

    program: tuple[str, ...] = _SSH
    grace_seconds: float = GRACE_SECONDS
    """How long a worker whose launcher has gone, or what a worker leaves behind, may take to obey a
    signal."""
    forgotten: tuple[str, ...] = ()
    """Variables that the program gives a worker, and that would mislead it."""

    def starts_on(self, host: str) -> bool:
        """Whether it starts the workers of `host`, which are else processes of this machine."""
        return not is_here(host)

    def address_of(self, host: str) -> str:
        """Returns the name or the address at which workers reach `host`."""
        return host

    def environment(self) -> dict[str, str]:
        """Returns the variables of the program itself."""
        return dict(os.environ)

    def command(
        self,
        host: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        workers: int | None = None,
    ) -> tuple[list[str], bytes]:
        """Returns what to run here, and what to write to its standard input. What is written there
        later are names of signals for the worker, such as `TERM`, a line each. `workers`: how many
        share that host's cores, where OMP_NUM_THREADS is to be the worker's part of them and not
        what `environment` says, which knows the cores of this host only."""
        known = with_text_of_secret(environment)  # its file is on this host alone
        if workers is not None:
            known.pop("OMP_NUM_THREADS", None)
        passed_on = {name: value for name, value in known.items() if _PASSED_ON.fullmatch(name)}
        # In braces, so that it is read to the end before anything of it runs.
        script = _SCRIPT.format(
            forgotten=f"unset {' '.join(self.forgotten)}" if self.forgotten else ":",
            exports="\n".join(f"export {name}={shlex.quote(it)}" for name, it in passed_on.items()),
            threads=":" if workers is None else _SHARE_OF_CORES.format(workers=workers),
            folder=shlex.quote(os.getcwd()),
            command=shlex.join(command),
            grace=max(1, math.ceil(self.grace_seconds)),
        )
        return [*self.program, host, "/bin/sh"], script.encode()
