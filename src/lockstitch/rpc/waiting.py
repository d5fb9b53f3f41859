"""Waiting for several futures at once: Ctrl-C ends it, and so does the first that fails.

`torch.futures.wait_all` promises to end at the first failure. It can keep that only for futures
that are completed in C++, whose exceptions lose their type; for all others, ours too, it waits for
the last one, and holds Ctrl-C back until then. Programs rely on its word, so `keep_word_of_torch`
has it hand over to ours where a future of ours is among those waited for.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from lockstitch.errors import PeerDiedError
from lockstitch.modes import in_plain_modes
from lockstitch.runtime.pending import Future as OurFuture
from lockstitch.runtime.pending import Pending
from lockstitch.runtime.stream_channel import StreamChannel
from lockstitch.runtime.worker import current_worker, has_current_worker
from lockstitch.torch_internals.calls import add_done_callback, is_done

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.futures import Future

T = TypeVar("T")


class _Countdown:
    """Counts futures that complete; `over` is set with the last of them, or with the first
    failure."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self.failed: Future[Any] | None = None
        self.over = threading.Event()
        self.sleeper = Pending(None, None, None)
        """What the thread that waits reads for, where it reads itself."""
        self.sleeper.is_shared = True

    def note(self, future: Future[Any]) -> None:
        """Counts a future that has completed; called by the thread that has completed it."""
        try:
            future.value()
            failed = False
        except Exception:  # noqa: BLE001 - raised by wait_all, on the thread that waits
            failed = True
        with self._lock:
            self._count -= 1
            if failed and self.failed is None:
                self.failed = future
            if self.failed is not None or self._count == 0:
                self.over.set()
                self.sleeper.finish(None, None)


@in_plain_modes
def wait_all(futures: Iterable[Future[T]]) -> list[T]:
    """Returns the values of all `futures`, in their order, when the last has completed.

    Raises the exception of the first that fails, at once and without waiting for the others, and
    `KeyboardInterrupt` at Ctrl-C.
    """
    waited = list(futures)
    if waited:
        countdown = _Countdown(len(waited))
        for future in waited:
            # The plain C++ method: it does not mark the future as one with callbacks of users,
            # which a thread of their own would have to run.
            add_done_callback(future, countdown.note)
        if not countdown.over.is_set():
            _wait(waited, countdown)
        if countdown.failed is not None:
            countdown.failed.wait()
    return [future.value() for future in waited]


def _wait(futures: list[Future[Any]], countdown: _Countdown) -> None:
    """Returns when the countdown is over. Where all answers will come over one connection, this
    thread reads them itself."""
    channel = _common_channel(futures)
    if channel is not None:
        countdown.sleeper.estimate = next(
            (each.estimate for each in futures if isinstance(each, OurFuture) and each.estimate),
            None,
        )
        with contextlib.suppress(PeerDiedError):  # told by the futures, too
            channel.wait_shared(countdown.sleeper)
    else:
        for future in futures:
            if isinstance(future, OurFuture):
                future.attend()
    blocked = current_worker().agent.blocked if has_current_worker() else contextlib.nullcontext
    with blocked():
        countdown.over.wait()


def _common_channel(futures: list[Future[Any]]) -> StreamChannel | None:
    """Returns the channel over which all answers will come; None where there are several, or none
    that a thread can read."""
    found: StreamChannel | None = None
    for future in futures:
        channel = future.channel if isinstance(future, OurFuture) else None
        if channel is None:
            if not is_done(future):
                return None
        elif not isinstance(channel, StreamChannel) or found not in (None, channel):
            return None
        else:
            found = channel
    return found


def keep_word_of_torch() -> None:
    """Has `torch.futures.wait_all` end at the first failure for futures of ours, too."""
    original = torch.futures.wait_all
    if getattr(original, "_knows_our_futures", False):
        return

    @functools.wraps(original)
    def wait_all_of_either(futures: list[Future[Any]]) -> list[Any]:
        if any(isinstance(future, OurFuture) for future in futures):
            return wait_all(futures)
        return original(futures)

    wait_all_of_either._knows_our_futures = True  # type: ignore[attr-defined]
    torch.futures.wait_all = wait_all_of_either
