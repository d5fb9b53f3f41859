"""A Slurm of two nodes: the real daemons, a host of its own for each (`tests.processes.two_hosts`).

The controller runs on the first. Needs what `TwoHosts` needs, and Debian's `slurm-wlm` and `munge`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.two_hosts import ADDRESSES, NAMES, TwoHosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CPUS = 4
_NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

_CONFIGURATION = f"""\
ClusterName=lockstitch
SlurmctldHost={NAMES[0]}({ADDRESSES[0]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={{folder}}/munge.socket
StateSaveLocation={{folder}}/state
SlurmdSpoolDir={{folder}}/spool-%n
SlurmctldPidFile={{folder}}/slurmctld.pid
SlurmdPidFile={{folder}}/slurmd-%n.pid
SlurmctldLogFile={{folder}}/slurmctld.log
SlurmdLogFile={{folder}}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=5
JobRequeue=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def wait_until(holds: Callable[[], bool], seconds: float = 90.0) -> None:
    """Asks every tenth of a second. Raises `TimeoutError`."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"in vain for {seconds} seconds")
        threading.Event().wait(0.1)


class SlurmCluster:
    """A context manager. `folder`: a folder of all nodes, for jobs to write into."""

    def __init__(self) -> None:
        self._hosts = TwoHosts()
        self._stack = ExitStack()
        self._is_cut = False
        self.folder = Path()
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmCluster:
        missing = [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]
        if missing:
            pytest.skip(f"needs Debian's slurm-wlm and munge: there is no {', '.join(missing)}")
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        # Daemons that end before the jobs would leave these behind.
        with suppress(TimeoutError, subprocess.TimeoutExpired):
            self.run(["scancel", "--signal=KILL", "--full", "--user=root"])
            self.run(["scancel", "--user=root"])
            wait_until(lambda: not self.run(["squeue", "--noheader"]).stdout.strip())
        self._stack.close()

    def _make(self) -> None:
        self._stack.enter_context(self._hosts)
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("state", *(f"spool-{node}" for node in NAMES)):
            (self.folder / name).mkdir()
        self._start_munge()
        nodes = [
            f"NodeName={name} NodeAddr={address} CPUs={CPUS} State=UNKNOWN\n"
            for name, address in zip(NAMES, ADDRESSES, strict=True)
        ]
        text = _CONFIGURATION.format(folder=self.folder) + "".join(nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._daemon(0, ["slurmctld", "-D", "-i"])
        self._nodes = [self._daemon(host, ["slurmd", "-D", "-N", NAMES[host]]) for host in (0, 1)]
        wait_until(self._all_idle)

    def _start_munge(self) -> None:
        self.folder.chmod(0o755)  # munge wants nobody else to write there
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names = ("socket", "pid-file", "log-file", "seed-file")
        files = [f"--{name}={self.folder}/munge.{name}" for name in names]
        self._daemon(0, ["munged", "--foreground", "--force", f"--key-file={key}", *files])
        wait_until((self.folder / "munge.socket").exists)

    def _daemon(self, host: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.folder / f"{words[0]}-{host}.out").open("wb"))
        process = subprocess.Popen(
            self._hosts.command(host, words), env=self.environment(), stdout=log, stderr=log
        )
        self._stack.callback(self._end, process)
        return process

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def environment(self) -> dict[str, str]:
        """The variables of whoever uses the cluster."""
        bare = {name: it for name, it in os.environ.items() if not name.startswith("SLURM_")}
        return {**bare, "PATH": _PATH, "SLURM_CONF": f"{self.folder}/slurm.conf"}

    def said(self, words: Sequence[str], **variables: str) -> str:
        """What a command prints on the first node."""
        done = self.run(words, **variables)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, words: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A command on the first node, which is ended with the context; what it says goes to a
        file."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                self._hosts.command(0, words), env=self.environment(), stdout=file, stderr=file
            )
        try:
            yield process
        finally:
            self._end(process)

    def submit(self, *words: str | Path, folder: Path) -> str:
        """Submits a batch script; returns the number of its job."""
        options = ["--parsable", f"--chdir={folder}"]
        return self.said(["sbatch", *options, *map(str, words)]).strip()

    def cut(self) -> None:
        """Nothing goes between the nodes any more."""
        self._is_cut = True
        self._hosts.cut()

    def heal(self) -> None:
        """Ends a `cut`, if there is one."""
        if self._is_cut:
            self._is_cut = False
            self._hosts.heal()
            wait_until(self._all_idle)

    def _all_idle(self) -> bool:
        return self.said(["sinfo", "-h", "-o", "%t %D"]).split() == ["idle", "2"]

    def run(self, words: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on the first node to its end."""
        return subprocess.run(
            self._hosts.command(0, words),
            env={**self.environment(), **variables},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
