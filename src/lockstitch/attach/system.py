"""What the system tells of a process and of its threads, in /proc; nothing where there is none."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final, Literal

from lockstitch.attach.control_groups import group_files
from lockstitch.attach.values import SystemReport

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

_WIDTH_OF_CALL: Final = 9
"""What is told of a call of the system: its number, six arguments, and two addresses."""
_FUTEX: Final = {
    "x86_64": "202",
    "aarch64": "98",
    "ppc64le": "221",
    "riscv64": "98",
    "s390x": "238",
}
"""The number of that call, for kernels that do not say in words where a thread waits."""
_COMMAND: Final = 0x7F
_WAIT_BITSET: Final = 9
"""With this semaphores and conditions wait, of which the locks of Python and of C++ are made."""

STATES: Final = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits (as for a disk: deaf to signals)",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended, and its parent has not noticed",
    "X": "has ended",
    "I": "is idle",
    "F": "is frozen with its control group",
}
"""The states of a process or thread, in words; F is ours, for what the system tells elsewhere."""


def look_at(pid: int) -> SystemReport | None:
    """Returns what the system tells of a process now; None where there is no such process."""
    fields = _stat(_PROC / str(pid) / "stat")
    if fields is None:
        return None
    state = "F" if _is_frozen(pid) else fields[0]
    if state == "S" and _has_a_thread_that_runs(pid):
        state = "R"
    sleeps_in = "" if state in "FR" else read(_PROC / str(pid) / "wchan")
    return SystemReport(
        state=state,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        memory=int(fields[21]) * _PAGE,
        threads=int(fields[17]),
        waits_in="" if sleeps_in in ("", "0") else sleeps_in,
        files=_open_files(pid),
    )


def born(pid: int) -> int | None:
    """Returns when a process began, in clock ticks since the system's start; None where there is
    none of that number, or it has ended and is only not waited for."""
    fields = _stat(_PROC / str(pid) / "stat")
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def started_at(pid: int) -> float:
    """Returns when a process began, in seconds since the epoch; now where that is not told."""
    fields = _stat(_PROC / str(pid) / "stat")
    if fields is None:
        return time.time()
    return time.time() - _uptime() + int(fields[19]) / _TICKS


def thread_state(native_id: int) -> str:
    """Returns the state of a thread of this process; empty where that is not told."""
    fields = _stat(_PROC / "self" / "task" / str(native_id) / "stat")
    return "" if fields is None else fields[0]


def what_keeps(native_id: int) -> Literal["", "lock", "limited lock", "sleep"]:
    """Returns in what the kernel keeps a thread of this process: a "lock" (a futex), whether that
    is for a limited time only, or a "sleep"; empty where it does not, or that is not told."""
    folder = _PROC / "self" / "task" / str(native_id)
    where, call = read(folder / "wchan"), read(folder / "syscall").split()
    if len(call) < _WIDTH_OF_CALL:
        return ""
    number, first, operation, _, limit = call[:5]
    if "nanosleep" in where or ("poll" in where and int(first, 16) == 0):
        return "sleep"
    is_futex = "futex" in where or number == _FUTEX.get(os.uname().machine)
    # Who wants the interpreter's lock waits in a plain one, for a mutex, or for a limited time.
    if not is_futex or int(operation, 16) & _COMMAND != _WAIT_BITSET:
        return ""
    return "limited lock" if int(limit, 16) else "lock"


def name_of_program(words: list[str]) -> str:
    """Returns a short name for the program of a command line: `train` for `python -u train.py`."""
    words = [word for word in words if word]
    if not words:
        return ""
    name = Path(words[0]).name
    if name.startswith("python"):
        rest = iter(words[1:])
        for word in rest:
            if word in ("-m", "-c"):
                return next(rest, name) if word == "-m" else "python -c"
            if word in ("-W", "-X"):
                next(rest, None)
            elif not word.startswith("-"):
                return Path(word).stem
    return Path(name).stem


def _is_frozen(pid: int) -> bool:
    files = group_files(pid, "freezer", "cgroup.events", "freezer.state")
    return any(re.search(r"^(frozen 1|FROZEN)$", read(each), re.MULTILINE) for each in files)


def _has_a_thread_that_runs(pid: int) -> bool:
    """Whether another thread of a process than the main one runs, which may be what that waits for;
    not asked of this process, in which the one that looks does."""
    if pid == os.getpid():
        return False
    stats = (_stat(each / "stat") for each in _PROC.glob(f"{pid}/task/*"))
    return any(fields is not None and fields[0] == "R" for fields in stats)


def _stat(path: Path) -> list[str] | None:
    """The fields of a `stat` file from the third on: the second, a name, may hold anything."""
    text = read(path)
    return text.rpartition(")")[2].split() if text else None


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(_PROC / str(pid) / "fd"))
    except OSError:
        return 0


def _uptime() -> float:
    text = read(_PROC / "uptime")
    return float(text.split()[0]) if text else time.monotonic()


def read(path: Path) -> str:
    """Returns the text of a file of the kernel's; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
