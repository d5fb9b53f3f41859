"""Whether this process can be forked so that the child computes gradients, and if not, why.

Beside an accelerator PyTorch's engine starts threads for the devices at the first backward pass of
the process, of whatever tensors, and refuses to run in any child that is forked after it. A torch
that was built for one does so even where there is none, once something stands in for it, as when
functions are compiled. The engine does not tell whether it has: its threads do, by their names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from lockstitch.devices import accelerators
from lockstitch.devices.kinds import is_gpu_context_open

HAS_SHARED_FILES: Final = hasattr(os, "memfd_create")
_TASKS: Final = Path("/proc/self/task")
_DEVICE_THREAD: Final = "pt_autograd_"


def obstacle(tasks: Path = _TASKS) -> str | None:
    """What keeps a slot from being a fork of this process, in the words of an error; None if
    nothing does. `tasks`: where the system lists this process's threads."""
    if not HAS_SHARED_FILES:
        return "slots that are processes need Linux"
    if is_gpu_context_open():
        return "a process in which CUDA is in use cannot be forked"
    if accelerators.are_known() and _has_device_threads(tasks):
        return (
            "a process that has run a backward pass beside an accelerator cannot be forked: "
            "PyTorch's engine would not run in the child. (Where there is none, PyTorch's compiler "
            "has had it prepare for one)"
        )
    return None


def _has_device_threads(tasks: Path) -> bool:
    return any(_name(task).startswith(_DEVICE_THREAD) for task in tasks.iterdir())


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # it has just ended
        return ""
