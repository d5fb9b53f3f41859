"""For whom this process waits before it belongs to a group: `lockstitch waits` tells it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lockstitch.attach.sources import SOURCES
from lockstitch.attach.values import OtherWait, ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.attach.values import Question


class Arrivals:
    """What is waited for now. A process has one, `ARRIVALS`."""

    def __init__(self) -> None:
        self._awaited: dict[object, tuple[float, Callable[[], OtherWait]]] = {}

    def __repr__(self) -> str:
        return f"<Arrivals · {len(self._awaited)} awaited>"

    @contextlib.contextmanager
    def awaited(self, tell: Callable[[], OtherWait]) -> Iterator[None]:
        """Within, this process waits for what `tell` returns; it is called by other threads, and
        raises `RuntimeError` where it cannot tell."""
        key = object()
        self._awaited[key] = time.monotonic(), tell
        try:
            yield
        finally:
            del self._awaited[key]

    def waits(self, _question: Question) -> list[OtherWait]:
        """Returns all of it."""
        found = []
        for since, tell in list(self._awaited.values()):
            with contextlib.suppress(RuntimeError):  # the store is gone
                found.append(replace(tell(), seconds=time.monotonic() - since))
        return found


def arrivals_of(ranks: Sequence[int], size: int) -> OtherWait:
    """Returns that some of `size` ranks have not come yet."""
    whom = ranks_in_words(ranks) if ranks else "their answers"
    return OtherWait(
        f"has come to the meeting of {size} ranks, waits for {whom}", ranks=tuple(ranks)
    )


ARRIVALS: Final = Arrivals()
SOURCES.waits.append(ARRIVALS.waits)
