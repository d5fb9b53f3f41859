"""Who draws random numbers: the generators are the process's, and so are they to one stage at a
time, from the beginning to the end of a forward pass.

A forward pass may wait for other stages of this process: those of a pipeline that its module runs,
or that runs where its module has called another worker. Whatever it waits for, the generators are
theirs meanwhile; when it goes on, they are as it left them.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from lockstitch.devices.kinds import HOST
from lockstitch.nn.slots import generators
from lockstitch.runtime.inherited import INHERITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class _Turn(threading.local):
    """Whether this thread has the generators, and those of which device."""

    place: torch.device | None = None


_LOCK: Final = threading.Lock()
_TURN: Final = _Turn()


@contextlib.contextmanager
def drawing_from(seed: int, device: torch.device | None) -> Iterator[None]:
    """Within, random numbers of the host and of `device` follow from the seed, and no other stage
    draws any; afterwards they follow from what they would have."""
    before, place = _TURN.place, HOST if device is None else device
    around = INHERITED.around_waits
    if before is None:
        _LOCK.acquire()
    try:
        states = generators.states_of(place)
        _TURN.place = place
        INHERITED.around_waits = others_may_draw
        try:
            generators.seed(seed, place)
            yield
        finally:
            _TURN.place = before
            INHERITED.around_waits = around
            generators.restore(states, place)
    finally:
        if before is None:
            _LOCK.release()


@contextlib.contextmanager
def others_may_draw() -> Iterator[None]:
    """Within, while this thread waits, it is another stage's turn, if it was its own."""
    place = _TURN.place
    if place is None:
        yield
        return
    with generators.kept(place):
        _TURN.place = None
        _LOCK.release()
        try:
            yield
        finally:
            _LOCK.acquire()
            _TURN.place = place
