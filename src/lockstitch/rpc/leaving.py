"""The end of a worker: with the others, alone, or at once.

    all together    nothing is under way any more ─► drop all references ─► all have ─► go
    alone           my own work is done ─► tell the others ─► what they had begun is done ─► go;
                    they see that what I own is gone with me

Whatever fails on the way, the last step is taken: after it no thread, socket or service is left.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
from typing import TYPE_CHECKING, Final

from lockstitch.errors import RpcTimeoutError
from lockstitch.rpc.membership import Membership
from lockstitch.rpc.quiescence import Quiescence, TimeLimit
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.worker import PROCESS, current_worker, has_current_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.runtime.worker import Worker


_ANSWER_SECONDS: Final = 0.2
_GRACE_SECONDS: Final = 0.35
_FAREWELL_SECONDS: Final = 5.0
_LAST_STEPS_SECONDS: Final = 0.9
_AT_TERMINATION_SECONDS: Final = 4.0


def has_left() -> bool:
    """Whether this process had a worker of its own, which has been shut down, and has no other."""
    return PROCESS.has_ended and not has_current_worker()


def leaves_together(worker: Worker) -> bool:
    """Whether the worker belongs to a static group, which ends as one."""
    return worker.service(Membership).is_static


def keep_to(worker: Worker, timeout_seconds: float, leave: Callable[[], None]) -> None:
    """Runs `leave()`, which keeps to that time itself as long as nothing blocks it. But a message
    to a peer that takes nothing in leaves when it does, and no earlier; so it runs on a thread of
    its own, and is left behind a moment after its time (0: waits for ever). Raises what it raises,
    or `RpcTimeoutError`."""
    if not timeout_seconds:
        leave()
        return
    errors: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            leave()
        except BaseException as error:  # noqa: BLE001 - raised where the user waits
            errors.append(error)
        over.set()

    name, context = f"{worker.name}-leaving", contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    with worker.agent.blocked():
        in_time = worker.clock.wait(over, timeout_seconds + _GRACE_SECONDS)
    if errors:
        raise errors[0]
    if not in_time:
        raise RpcTimeoutError(
            f"worker {worker.name!r} could not part within {timeout_seconds:g} s: it waits for "
            f"{', '.join(worker.service(Quiescence).owing()) or 'others'}, who take nothing in: "
            f"{worker.agent!r}"
        )


def wait_for_own_work(worker: Worker, timeout_seconds: float) -> None:
    """Returns when the worker has nothing left to do; raises `RpcTimeoutError` (0: waits for
    ever)."""
    worker.service(Quiescence).wait_until_rest(timeout_seconds or None)


def until_the_end(worker: Worker, timeout_seconds: float) -> TimeLimit:
    """Returns the time limit of a whole shutdown with that timeout, its own last steps included."""
    return TimeLimit(worker.clock, timeout_seconds + _LAST_STEPS_SECONDS if timeout_seconds else 0)


def answer_what_is_served(worker: Worker, timeout_seconds: float) -> None:
    """Waits a moment for answers that are almost there, before a worker goes because something went
    wrong. Returns after less than a second."""
    with contextlib.suppress(RpcTimeoutError):
        wait_for_own_work(worker, min(timeout_seconds or _ANSWER_SECONDS, _ANSWER_SECONDS))


def leave_alone(worker: Worker, timeout_seconds: float) -> None:
    """Returns when this worker has nothing left to do, and the others know that it goes; raises
    `RpcTimeoutError`."""
    limit = TimeLimit(worker.clock, timeout_seconds)
    wait_for_own_work(worker, timeout_seconds)
    worker.service(Membership).leave(min(limit.remaining or _FAREWELL_SECONDS, _FAREWELL_SECONDS))
    wait_for_own_work(worker, limit.remaining)  # somebody may have called before it heard


def leave_at_termination() -> None:
    """Ends this process's worker, if it has one, because the process is told to end. In a dynamic
    group it finishes what it has begun and serves, if that takes no longer than four seconds, and
    the others hear that it has left; one of a static group they lose. Raises nothing."""
    if not has_current_worker():
        return
    worker = current_worker()
    with contextlib.suppress(Exception):  # nobody waits for it, and the process ends
        if not leaves_together(worker):
            try:
                leave_alone(worker, _AT_TERMINATION_SECONDS)
            except RpcTimeoutError:
                worker.service(Membership).leave(_ANSWER_SECONDS)
    with contextlib.suppress(Exception):
        finish(worker, ignore_leaks=True)


def part(worker: Worker, timeout_seconds: float) -> None:
    """Returns when all workers have dropped their references and may go."""
    quiescence = worker.service(Quiescence)
    worker.service(Membership).leave(timeout_seconds)
    limit = TimeLimit(worker.clock, timeout_seconds)
    quiescence.wait_until_all_rest(timeout_seconds or None)
    quiescence.let_others_go(limit.remaining or _FAREWELL_SECONDS)


def finish(worker: Worker, *, ignore_leaks: bool, limit: TimeLimit | None = None) -> None:
    """Ends the worker, within `limit`. Raises `RRefError` if it still owns values that others may
    use, unless leaks are ignored, and what a membership callback has raised; the worker is at an
    end all the same."""
    try:
        if not ignore_leaks:
            worker.service(ReferenceService).check_leaks()
    finally:
        worker.close(_ANSWER_SECONDS, (limit and limit.remaining) or math.inf)
    error = worker.service(Membership).callback_error
    if error is not None:
        raise error
