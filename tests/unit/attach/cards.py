"""Values for tests, as processes would tell them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstitch.attach.values import (
    Card,
    CodeLine,
    GroupReport,
    ProcessReport,
    SystemReport,
    ThreadReport,
    WorkerReport,
)

CARD = Card(10, 1, 1, "1.0", "worker", "train", "", "", (), (), 100.0)
SYSTEM = SystemReport("S", 1.5, 1 << 20, 4)
LINE = CodeLine("train.py", 7, "main", "wait()")


def card(pid: int, **changes: Any) -> Card:
    return replace(CARD, pid=pid, **changes)


def main_thread(at: CodeLine = LINE, **changes: Any) -> ThreadReport:
    return replace(ThreadReport("MainThread", 1, 1, "main", "S", at, (at,)), **changes)


def process(
    pid: int,
    *,
    workers: tuple[WorkerReport, ...] = (),
    groups: tuple[GroupReport, ...] = (),
    threads: tuple[ThreadReport, ...] = (),
    stands_in: str = "lockstitch",
    **changes: Any,
) -> ProcessReport:
    """`threads`: besides the main one, which `stands_in` something."""
    main = main_thread(changes.pop("at", LINE), stands_in=stands_in)
    return ProcessReport(card(pid, **changes), "host", SYSTEM, workers, groups, (main, *threads))
