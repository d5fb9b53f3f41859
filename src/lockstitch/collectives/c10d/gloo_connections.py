"""The connections of a group of Gloo, to end what waits there.

torch's `abort` does nothing to Gloo: who waits for a rank that lives waits until the time of the
operation is over, whatever has become of the session. But Gloo waits for connections, and each of
them has at one end a port at which Gloo listens, ours or that of another rank. By these ports they
are found among all that the process has open, and ended.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from lockstitch.link.addresses import address_of_interface
from lockstitch.link.sockets import end_connections, listeners
from lockstitch.torch_internals.distributed import gloo_options

if TYPE_CHECKING:
    from datetime import timedelta

_BEGINNING: Final = threading.Lock()
"""Held while Gloo begins to listen: who does so at the same time could not be told apart."""


class GlooConnections:
    """Those of one group. `port`: at which Gloo listens here, 0 where that is not known."""

    def __init__(self, address: str, port: int) -> None:
        self.port = port
        self._listeners = {(address, port)}

    def __repr__(self) -> str:
        return f"<GlooConnections · {len(self._listeners)} listen>"

    def learn(self, address: str, port: int) -> None:
        """Takes in where Gloo listens for the group on another rank."""
        self._listeners.add((address, port))

    def end(self) -> None:
        """Ends all of them, on both sides: who waits for one, here or there, fails. Does nothing
        where it is not known which they are. Harmless when repeated: somebody else may listen there
        then, so each place counts once."""
        ended, self._listeners = self._listeners, set()
        end_connections(ended)


def address_of_gloo(address: str | None) -> str | None:
    """Returns at which address Gloo awaits others between hosts; None where it is to find that by
    itself, as among several interfaces. Only of an address that is known can its connections be
    ended."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if address is None or not name:
        return address
    return None if "," in name else address_of_interface(f"={name}")


def listening(
    address: str | None, timeout: timedelta, *, is_lazy: bool
) -> tuple[Any, GlooConnections]:
    """Begins to listen at this address for the other members of a group of torch's, and returns
    what the group is made with, with its connections; if `is_lazy` they come as they are needed.
    None: where Gloo listens by itself, once the group is made. Raises `RuntimeError`."""
    if address is None:
        return timeout, GlooConnections("", 0)
    with _BEGINNING:
        before = listeners(address)
        options = gloo_options(address, timeout, is_lazy=is_lazy)
        found = [port for _, port in listeners(address) - before]
    # Should the program have begun to listen in that moment, too, it is not known which is Gloo's.
    return options, GlooConnections(address, found[0] if len(found) == 1 else 0)
