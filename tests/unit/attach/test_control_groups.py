"""Files of the control groups of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.attach import control_groups
from lockstitch.attach.control_groups import group_files

if TYPE_CHECKING:
    from pathlib import Path

UNIFIED, OLDER = "memory.events", "memory.oom_control"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the kernel's control groups, with process 7 in it."""
    monkeypatch.setattr(control_groups, "_GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "_PROC", tmp_path / "proc")
    for folder in ("proc/7", "job", "memory/job"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("told", "file"),
    [
        ("0::/job\n", f"job/{UNIFIED}"),
        ("9:cpu,memory:/job\n8:cpuset:/job\n", f"memory/job/{OLDER}"),
        # In a container, whose group is the root of what it sees.
        ("0::/docker/4711\n", UNIFIED),
        ("9:memory:/docker/4711\n", f"memory/{OLDER}"),
    ],
)
def test_the_file_is_that_of_the_hierarchy(groups: Path, told: str, file: str) -> None:
    (groups / "proc" / "7" / "cgroup").write_text(told)
    assert group_files(7, "memory", UNIFIED, OLDER) == []
    (groups / file).write_text("oom_kill 0\n")
    assert group_files(7, "memory", UNIFIED, OLDER) == [groups / file]


def test_of_a_process_that_is_gone_there_are_none(groups: Path) -> None:
    assert group_files(8, "memory", UNIFIED, OLDER) == []
