"""Out of memory, or killed by somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.attach import control_groups
from lockstitch.launch import memory_kills
from lockstitch.launch.memory_kills import MemoryKills, count_in

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = "low 0\nhigh 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n"
LOG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/a,task=python,pid=4712,uid=0\n"
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB\n"
)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the kernel's control groups; its log cannot be read."""
    monkeypatch.setattr(control_groups, "_GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory_kills, "_OF_MACHINE", tmp_path / "vmstat")
    monkeypatch.setattr(memory_kills, "_log", lambda: "")
    (tmp_path / "job" / "worker").mkdir(parents=True)
    for process in ("self", "1", "7"):
        (tmp_path / "proc" / process).mkdir(parents=True)
    (tmp_path / "memory" / "job").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("own_group", "file"),
    [("0::/job\n", "job/memory.events"), ("9:cpu,memory:/job\n", "memory/job/memory.oom_control")],
)
def test_what_the_control_group_counts_since_the_beginning_counts(
    groups: Path, own_group: str, file: str
) -> None:
    (groups / file).write_text(EVENTS.format(3))
    (groups / "proc" / "self" / "cgroup").write_text(own_group)
    kills = MemoryKills()
    assert kills.describe(1).startswith("somebody has sent it")
    (groups / file).write_text(EVENTS.format(4))
    assert kills.describe(1) == (
        "out of memory? Since the job began the kernel has killed 1 process for want of memory in "
        "this control group"
    )


def test_the_group_of_a_worker_may_be_another_one_than_the_launchers(groups: Path) -> None:
    (groups / "proc" / "self" / "cgroup").write_text("0::/job\n")
    (groups / "proc" / "7" / "cgroup").write_text("0::/job/worker\n")
    own, its = groups / "job" / "memory.events", groups / "job" / "worker" / "memory.events"
    own.write_text(EVENTS.format(0))
    its.write_text(EVENTS.format(3))
    kills = MemoryKills()
    kills.follow(7)
    its.write_text(EVENTS.format(4))
    assert kills.describe(7).endswith("killed 1 process for want of memory in its control group")
    assert kills.describe(1).startswith("somebody has sent it")


def test_the_machine_counts_too(groups: Path) -> None:
    (groups / "vmstat").write_text("pgfault 3\noom_kill 0\n")
    kills = MemoryKills()
    (groups / "vmstat").write_text("pgfault 3\noom_kill 2\n")
    assert "has killed 2 processes for want of memory on this machine" in kills.describe(1)


def test_where_nothing_is_counted_nothing_is_said(groups: Path) -> None:
    assert MemoryKills().describe(1) == ""
    assert count_in("oom 3\n") is None


@pytest.mark.parametrize("pid", [4711, 4712])
def test_the_log_names_the_process(groups: Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    monkeypatch.setattr(memory_kills, "_log", lambda: LOG)
    assert MemoryKills().describe(pid).startswith("out of memory: the kernel's log says")
    assert MemoryKills().describe(471) == ""
