"""The way into a session where the launcher lets workers come and go: with the ranks that it names
now.

A world may end before all of its ranks have met, since one has died. Those who wait are told, call
the meeting off, and ask for a place in the next world.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from lockstitch.attach.logs import ProcessLog
from lockstitch.collectives import call_off, open_session
from lockstitch.errors import BoardLostError
from lockstitch.hvd.environment import options_of
from lockstitch.launcher_link import Over
from lockstitch.launcher_link.client import REACHED_AT
from lockstitch.launcher_link.process import WorkerDismissed
from lockstitch.link.addresses import LOOPBACK
from lockstitch.link.ports import find_ports
from lockstitch.link.sockets import HeldPort

if TYPE_CHECKING:
    from lockstitch.collectives import Session, SessionOptions
    from lockstitch.launcher_link import LauncherClient, RankAssignment

_log = ProcessLog(__name__)

_ATTEMPTS = 5


class Worlds:
    """This process's way from one world to the next."""

    def __init__(self) -> None:
        self._is_opening = threading.Event()

    def open(self, link: LauncherClient) -> Session:
        """Returns this process's session in the next world that it has a place in. Raises
        `WorkerDismissed` where there will be none any more: the process has nothing left to do."""
        link.on_void = self._call_off
        if link.place is None:
            _take_one_step()
        for attempt in range(1, _ATTEMPTS + 1):
            self._is_opening.set()
            try:
                with HeldPort(ports=find_ports(None, os.environ)) as port:
                    answer = link.next_place(port.number)
                    if isinstance(answer, Over):
                        _log.info("no place for this worker: %s", answer.reason)
                        raise WorkerDismissed(answer.reason)
                    options = _options_at(answer.store)
                    session = open_session(answer.rank, answer.size, answer.store, options)
                    # Where programs of the original look.
                    os.environ["HOROVOD_RANK"] = str(answer.rank)
                    os.environ["HOROVOD_SIZE"] = str(answer.size)
                    return session
            except BoardLostError:
                raise
            except RuntimeError:
                if attempt == _ATTEMPTS:
                    raise
                _log.info("a world ended before its ranks had met")
            finally:
                self._is_opening.clear()
        raise AssertionError("unreachable")

    def _call_off(self, place: RankAssignment) -> None:
        """Runs in the link's thread."""
        if self._is_opening.is_set():
            with contextlib.suppress(RuntimeError):  # the store has gone with the launcher
                call_off(place.size, place.store)


def _options_at(store: str) -> SessionOptions:
    """Those of a world that meets there. Ranks that meet in a file of the launcher's are on one
    host."""
    here = LOOPBACK if store.startswith("file:") else None
    return replace(options_of(os.environ), address=os.environ.get(REACHED_AT, here))


def _take_one_step() -> None:
    """Has torch import what it needs for a first step of a training, its compiler among it, which
    takes seconds: all other ranks would wait for a newcomer's first step."""
    parameter = torch.nn.Parameter(torch.zeros(1, device="cpu"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    torch.autograd.backward(2 * parameter)
    optimizer.step()
    optimizer.zero_grad()


WORLDS: Final = Worlds()
