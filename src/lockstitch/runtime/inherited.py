"""What code that a thread runs inherits from whoever runs it: above all, of a timeout that a user
gave, what remains."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class _Inherited(threading.local):
    deadline: float | None = None
    loop_of: str | None = None
    around_waits: Callable[[], AbstractContextManager[None]] | None = None


INHERITED: Final = _Inherited()
"""Its `deadline` is that of the call that this thread serves, if its user gave one. `loop_of` names
the worker whose event loop this thread runs, if it does. `around_waits` makes what a thread of a
pool is to be in while it waits for others, if anything: it gives others something meanwhile."""


def refuse_to_block(what: str) -> None:
    """Raises `RuntimeError` on a thread that runs an event loop: while it waits, no coroutine goes
    on, perhaps not even the one that it waits for."""
    if INHERITED.loop_of is not None:
        raise RuntimeError(
            f"{what} would hold up the event loop of worker {INHERITED.loop_of!r}, on which all "
            "its async functions run: await the future of rpc_async instead, or put what has to "
            "wait into asyncio.to_thread"
        )


@contextlib.contextmanager
def inherited_deadline(deadline: float) -> Iterator[None]:
    """Within, the deadline of `INHERITED` is `deadline` (of the worker's clock)."""
    before, INHERITED.deadline = INHERITED.deadline, deadline
    try:
        yield
    finally:
        INHERITED.deadline = before
