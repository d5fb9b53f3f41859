"""Ranges that a program marks by `torch.profiler.record_function`, and torch for it: steps of
optimizers, forward passes of a `DataParallel`.

While spans are recorded, entering and leaving such a range is noted beside what it does anyway. At
all other times torch's own functions are in place. A range that began before the recording, or ends
after it, is not told.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.attach.spans import SpanRing

_HOME: Final = "torch.autograd.profiler"
_BEGAN: Final = "_lockstitch_began_at"


class Recording(Protocol):
    """Who keeps the spans; a `Recorder`."""

    spans: SpanRing | None


class Ranges:
    """See the module. A process has one, `RANGES`; its methods are called in turn."""

    def __init__(self) -> None:
        self._class: Any = None
        self._own: tuple[Any, Any] = (None, None)

    def __repr__(self) -> str:
        return f"<Ranges · {'noted' if self._class is not None else 'not noted'}>"

    def begin(self, recorder: Recording) -> None:
        """Has ranges noted from now on, if this process has torch; harmless when repeated."""
        cls = getattr(sys.modules.get(_HOME), "record_function", None)
        if cls is None or self._class is not None:
            return
        self._class, self._own = cls, (cls.__enter__, cls.__exit__)
        cls.__enter__ = _noting_entry(cls.__enter__)
        cls.__exit__ = _noting_exit(cls.__exit__, recorder)

    def end(self) -> None:
        """Puts torch's own functions back; harmless when repeated."""
        cls, self._class = self._class, None
        if cls is not None:
            cls.__enter__, cls.__exit__ = self._own


def _noting_entry(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def __enter__(self: Any) -> Any:  # noqa: N807 - it stands for torch's
        entered = own(self)
        setattr(self, _BEGAN, time.monotonic())
        return entered

    return __enter__


def _noting_exit(own: Callable[..., Any], recorder: Recording) -> Callable[..., Any]:
    @functools.wraps(own)
    def __exit__(self: Any, *about: Any) -> Any:  # noqa: N807 - it stands for torch's
        began_at = self.__dict__.pop(_BEGAN, None)
        spans = recorder.spans
        if began_at is not None and spans is not None:
            spans.add("range", str(self.name), "", began_at, time.monotonic())
        return own(self, *about)

    return __exit__


RANGES: Final = Ranges()
