"""Ctrl-C at every point where Python may deliver it.

CPython looks for signals when a Python function is entered, when a C function has returned to
Python code, and at the end of each turn of a loop. A profile function that raises at the nth of the
first two strikes exactly there; the ends of turns lie next to them.

A `with` enters and remembers to leave in one step: where a profile function sees that call, as from
Python 3.14 on, it does not strike. (3.14 itself, up to 3.14.10 at least, may be interrupted between
the two, and the lock stays locked; 3.15 has that mended. Nothing written in Python can help it.)
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType


class Strike(KeyboardInterrupt):
    """The interrupt of a test."""


class Interrupter:
    """Raises `Strike` at the `number`-th point that lies in code of one of `modules`."""

    def __init__(self, number: int, modules: tuple[str, ...]) -> None:
        self.remaining = number
        self.where = ""
        self._modules = modules

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return"):
            return
        if event == "c_return" and argument.__name__ == "__enter__":
            return
        if frame.f_globals.get("__name__") not in self._modules:
            return
        self.remaining -= 1
        if self.remaining == 0:
            sys.setprofile(None)
            self.where = f"{event} at {frame.f_code.co_name}:{frame.f_lineno} {argument}"
            raise Strike(self.where)


class interrupted:  # noqa: N801 - as a function of `contextlib`, whose frames would keep the strike
    """Within, the `number`-th point is struck; the strike ends the block."""

    def __init__(self, number: int, *modules: str) -> None:
        self._interrupter = Interrupter(number, modules)

    def __enter__(self) -> Interrupter:
        sys.setprofile(self._interrupter)
        return self._interrupter

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.setprofile(None)
        return kind is Strike


class _Trip:
    __neg__ = _thread.interrupt_main


class RepeatedInterrupter:
    """Sends this process SIGINT at each of `numbers`: the first counts points from the beginning,
    each further one those after the one before. So it may strike what handles a strike, which an
    exception raised by a profile function, after which there is none any more, cannot."""

    def __init__(self, numbers: Sequence[int], modules: tuple[str, ...]) -> None:
        self.where: list[str] = []
        self.seen = 0
        self._numbers = deque(itertools.accumulate(numbers))
        self._modules = modules
        self._trip = _Trip()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return"):
            return
        if event == "c_return" and argument.__name__ == "__enter__":
            return
        if frame.f_globals.get("__name__") not in self._modules:
            return
        self.seen += 1
        if self._numbers and self._numbers[0] == self.seen:
            self._numbers.popleft()
            self.where.append(f"{event} at {frame.f_code.co_name}:{frame.f_lineno} {argument}")
            # No call of Python's, after which the signal would be seen here already.
            _ = -self._trip  # type: ignore[operator]


@contextlib.contextmanager
def interrupted_again(numbers: Sequence[int], *modules: str) -> Iterator[RepeatedInterrupter]:
    """Within, SIGINT comes at those points; the last one ends the block. For the main thread."""
    interrupter = RepeatedInterrupter(numbers, modules)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.setprofile(interrupter)
            yield interrupter
        finally:
            sys.setprofile(None)


def strike_everywhere(attempt: Callable[[int], Interrupter]) -> int:
    """Calls `attempt` with 1, 2, … until it ran without being struck; returns how many points there
    were."""
    number = 0
    while True:
        number += 1
        if attempt(number).remaining > 0:
            return number - 1
