"""Whether a process that was killed by SIGKILL had used too much memory.

The kernel ends processes so where memory runs out, of the machine or of a control group (a
container, a job of Slurm), and the process cannot say a word. It counts them (`oom_kill`), and
names them in its log, which not everybody may read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_LOG: Final = "/dev/kmsg"
_LONGEST_RECORD: Final = 1 << 13
_MOST_RECORDS: Final = 20_000
_OF_MACHINE: Final = Path("/proc/vmstat")


class MemoryKills:
    """What the kernel has counted since this was made."""

    def __init__(self, own_group: str | None = None) -> None:
        """`own_group`: what /proc/self/cgroup says, by default."""
        text = _read(Path("/proc/self/cgroup")) if own_group is None else own_group
        self._files = [*_files_of(text), _OF_MACHINE]
        self._before = [count_in(_read(file)) for file in self._files]

    def describe(self, pid: int) -> str:
        """Returns what the kernel says of process `pid`, which SIGKILL has ended; empty where it
        can be asked nothing."""
        line = _line_about(pid, _log())
        if line:
            return f"out of memory: the kernel's log says {line!r}"
        counted = False
        for file, before in zip(self._files, self._before, strict=True):
            now = count_in(_read(file))
            if now is None or before is None:
                continue
            if now > before:
                where = "on this machine" if file == _OF_MACHINE else "in this control group"
                return (
                    f"out of memory? Since the job began the kernel has killed {now - before} "
                    f"process{'es' * (now - before > 1)} for want of memory {where}"
                )
            counted = True
        if not counted:
            return ""
        return "somebody has sent it: the kernel counts none that it has killed for want of memory"


def count_in(text: str) -> int | None:
    """Returns the number of such processes in a file of the kernel's; None where it has none."""
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return None if found is None else int(found[1])


def _files_of(own_group: str) -> list[Path]:
    """The files that count for a control group: of the unified hierarchy, or of the older one."""
    files = []
    for line in own_group.splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            files.append(_GROUPS / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(_GROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
    return files


def _line_about(pid: int, log: str) -> str:
    pattern = rf"^.*\b(?:[Oo]ut of memory|oom-kill).*(?:[Kk]illed process |pid=){pid}\b.*$"
    found = re.findall(pattern, log, re.MULTILINE)
    return found[-1].strip()[:200] if found else ""


def _log() -> str:
    """The messages of the kernel's log; empty where this user may not read it."""
    messages = []
    try:
        descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        for _ in range(_MOST_RECORDS):
            record = os.read(descriptor, _LONGEST_RECORD)
            messages.append(record.decode(errors="replace").partition(";")[2].split("\n")[0])
    except OSError:  # all is read, or what was next has just been overwritten
        pass
    finally:
        os.close(descriptor)
    return "\n".join(messages)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
