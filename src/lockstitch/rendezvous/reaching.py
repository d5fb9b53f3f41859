"""Waits until torch's store answers at an address, and says so if that takes long.

torch's own client waits inside C++: it tells nobody what it waits for but by stacks of its own,
lets no Ctrl-C through, and takes whatever listens there for the store. So we ask first, with the
two words that each of torch's clients begins with, and give up by ourselves.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from torch.distributed import DistNetworkError

from lockstitch.attach.values import OtherWait
from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.link.addresses import with_port
from lockstitch.rendezvous.arrivals import ARRIVALS

if TYPE_CHECKING:
    from collections.abc import Callable

NOTICE_SECONDS: Final = 3.0
"""Whoever waits for others says so after this time."""

# Its protocol: "validate" with a number that says that a client of torch's calls; "ping" with a
# number that comes back.
_VALIDATE: Final = struct.pack("=BI", 0, 0x3C85F7CE)
_PING: Final = struct.pack("=B", 13)
_NUMBER: Final = struct.pack("=I", 0x4C6F636B)
_OTHER: Final = "what listens there does not answer as a store of torch's"
_ANSWER_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 0.5
_NO_WAY: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN})
_NO_WAY_SECONDS: Final = 10.0
"""Who starts later may listen later; that a network comes is not waited for any longer."""


def say(text: str) -> None:
    """Prints a line on stderr, for whoever watches the job."""
    print(f"lockstitch: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Problem:
    """Why a store does not answer; `is_no_way`: no network leads there."""

    text: str
    is_no_way: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Address:
    """The address of a store that is there, or is to be."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{with_port(self.host, self.port)}"

    def why_not_here(self) -> str:
        """Returns why a store that is hosted by this process cannot be reached there; empty where
        it may be."""
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
            for family, kind, _, _, bound_to in found:
                with socket.socket(family, kind) as tried:
                    tried.bind((bound_to[0], 0))
        except socket.gaierror as error:
            return f"there is no host {self.host!r} ({error.strerror})"
        except OSError as error:
            return f"{self.host} is no address of this host ({error.strerror})"
        return ""

    def problem(self) -> Problem | None:
        """Returns why the store does not answer here; None where it does."""
        is_connected = False
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_SECONDS) as connection:
                is_connected = True
                connection.sendall(_VALIDATE + _PING + _NUMBER)
                answer = b""
                while len(answer) < len(_NUMBER) and (part := connection.recv(16)):
                    answer += part
        except socket.gaierror as error:
            return Problem(f"there is no host {self.host!r} ({error.strerror})")
        except TimeoutError:
            return Problem(_OTHER if is_connected else "nobody answers there")
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return Problem("nobody listens there")
            return Problem(
                f"{error.strerror or error} from host {socket.gethostname()}",
                is_no_way=error.errno in _NO_WAY,
            )
        return None if answer == _NUMBER else Problem(_OTHER)


def wait_for_store(
    address: Address,
    rank: int,
    timeout_seconds: float,
    *,
    clock: Clock = SYSTEM_CLOCK,
    tell: Callable[[str], None] = say,
) -> None:
    """Returns when the store answers; after three seconds `tell` is called, once, with what is
    waited for. Raises torch's `DistNetworkError` when the time is over, or for ten seconds no
    network has led there."""
    begun, pause, is_told = clock.now(), _PAUSE_SECONDS, False
    had_way, problem = begun, None

    def awaited() -> OtherWait:
        return OtherWait(f"waits for rank 0 to meet the others at {address}: {problem}", ranks=(0,))

    with ARRIVALS.awaited(awaited):
        while problem := address.problem():
            waited = clock.now() - begun
            if not problem.is_no_way:
                had_way = clock.now()
            is_too_long = clock.now() - had_way >= _NO_WAY_SECONDS
            if waited >= timeout_seconds or is_too_long:
                raise DistNetworkError(
                    f"rank {rank} did not meet the others at {address} within "
                    f"{min(waited, timeout_seconds):g} s: {problem}. Has each been started, "
                    "rank 0 first of all, and all with the same address, at a port that is free on "
                    "rank 0's host, and that no firewall closes?"
                )
            if waited >= NOTICE_SECONDS and not is_told:
                is_told = True
                patience = timeout_seconds
                if problem.is_no_way:
                    patience = min(patience, _NO_WAY_SECONDS)
                tell(
                    f"rank {rank} waits for rank 0 to meet the others at {address}: {problem}. It "
                    f"gives up after {patience:g} s"
                )
            clock.wait(threading.Event(), min(pause, timeout_seconds - waited))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
