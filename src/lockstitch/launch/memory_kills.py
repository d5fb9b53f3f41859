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

from lockstitch.attach.control_groups import group_files
from lockstitch.attach.system import read

_LOG: Final = "/dev/kmsg"
_LONGEST_RECORD: Final = 1 << 13
_MOST_RECORDS: Final = 20_000
_OF_MACHINE: Final = Path("/proc/vmstat")


class MemoryKills:
    """What the kernel has counted since this was made, and since a process was followed."""

    def __init__(self) -> None:
        self._before: dict[Path, int | None] = {}
        self._files: dict[int | str, list[Path]] = {}
        self.follow("self")
        self._before[_OF_MACHINE] = count_in(read(_OF_MACHINE))

    def follow(self, pid: int | str) -> None:
        """Looks at the control groups of a process, which may be others than this one's."""
        self._files[pid] = files = group_files(pid, "memory", "memory.events", "memory.oom_control")
        for file in files:
            self._before.setdefault(file, count_in(read(file)))

    def describe(self, pid: int) -> str:
        """Returns what the kernel says of process `pid`, which SIGKILL has ended; empty where it
        can be asked nothing."""
        line = _line_about(pid, _log())
        if line:
            return f"out of memory: the kernel's log says {line!r}"
        counted = False
        its = self._files.get(pid, [])
        for file in dict.fromkeys((*its, *self._files["self"], _OF_MACHINE)):
            now, before = count_in(read(file)), self._before[file]
            if now is None or before is None:
                continue
            if now > before:
                where = "in its control group" if file in its else "in this control group"
                if file == _OF_MACHINE:
                    where = "on this machine"
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
