"""Files of the control groups of a process: of the unified hierarchy, or of the older ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_PROC: Final = Path("/proc")


def group_files(pid: int | str, controller: str, unified: str, older: str) -> list[Path]:
    """Returns the files that tell of a controller, such as `memory`, for the groups of a process
    (by its number, or "self"): named `unified` in the unified hierarchy, `older` in that of the
    controller alone. None where the process is gone, or there are no such files."""
    try:
        text = (_PROC / str(pid) / "cgroup").read_text()
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found.append(_file(_GROUPS, path, unified))
        elif controller in controllers.split(","):
            found.append(_file(_GROUPS / controller, path, older))
    return [each for each in found if each.exists()]


def _file(root: Path, path: str, name: str) -> Path:
    file = root / path.lstrip("/") / name
    # In a container the path may be that of the host, where the container's group is the root.
    return file if file.exists() else root / name
