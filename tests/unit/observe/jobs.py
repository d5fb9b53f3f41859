"""Jobs for tests, as their processes would tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from lockstitch.attach.values import (
    CodeLine,
    CollectiveWait,
    GroupReport,
    PendingCall,
    ServedCall,
    ThreadReport,
    WorkerReport,
)
from lockstitch.observe.grouping import Job
from tests.unit.attach.cards import process

if TYPE_CHECKING:
    from lockstitch.attach.asking import Silence
    from lockstitch.attach.values import ProcessReport

Standing = Literal["", "lock", "sleep", "lockstitch"]
GATE = CodeLine("train.py", 3, "ask", "with lock:")
SLEEP = CodeLine("train.py", 9, "main", "time.sleep(1000)")


def job(*processes: ProcessReport, silent: tuple[Silence, ...] = ()) -> Job:
    return Job("train", 10, None, processes, silent)


def caller(number: int, to: int, *, of: int, seconds: float = 5.0) -> ProcessReport:
    """Worker `number` calls worker `to`, and serves a call of worker `of`, which wants a lock."""
    call = PendingCall(f"worker{to}", "m:ask", seconds, 7, 1)
    served = ServedCall(f"worker{of}", "m:ask", seconds, 7, 2, GATE)
    report = WorkerReport(f"worker{number}", number, (call,), (served,))
    return process(10 + number, workers=(report,), rank=str(number), threads=(serving("lock"),))


def serving(stands_in: Standing, ident: int = 2) -> ThreadReport:
    """A thread that serves a call."""
    return ThreadReport("w", ident, ident, "serving", "S", GATE, (), "m:ask", stands_in)


def idle(number: int) -> ProcessReport:
    report = WorkerReport(f"worker{number}", number)
    return process(10 + number, workers=(report,), rank=str(number), at=SLEEP, stands_in="sleep")


def rank(number: int, size: int, *, missing: tuple[int, ...]) -> ProcessReport:
    """Rank `number` in an allreduce that `missing` have not submitted."""
    by = tuple(each for each in range(size) if each not in missing)
    is_submitted = number not in missing
    wait = CollectiveWait(
        "allreduce" if is_submitted else "", "grad", is_submitted, 4.0,
        missing if is_submitted else (number,), () if is_submitted else by,
    )  # fmt: skip
    group = GroupReport("hvd", "", number, size, waits=(wait,))
    where: dict[str, Any] = {} if is_submitted else {"at": SLEEP, "stands_in": "sleep"}
    return process(10 + number, groups=(group,), rank=str(number), **where)


def names(circle: tuple[object, ...]) -> list[str]:
    return [each.waiter for each in circle]  # type: ignore[attr-defined]
