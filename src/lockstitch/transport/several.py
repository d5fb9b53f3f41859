"""Several kinds of streams as one transport: it listens on each, and connects by the scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.transport.base import Connection, Listener, Poller, Transport


class SeveralTransports:
    """`transports` by the scheme of their addresses, the best first; they share one poller."""

    def __init__(self, transports: Mapping[str, Transport]) -> None:
        self._transports = dict(transports)

    def listen_on_each(self) -> list[Listener]:
        """A listener of each kind. All or none: the others are closed when one fails."""
        listeners: list[Listener] = []
        try:
            listeners.extend(each.listen() for each in self._transports.values())
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        return listeners

    def listen(self, address: str | None = None) -> Listener:
        """Listens at `address`, or at a fresh one of the best kind."""
        return self._transport(address).listen(address)

    def connect(self, address: str, timeout_seconds: float) -> Connection:
        """Connects by the transport of the address's scheme."""
        return self._transport(address).connect(address, timeout_seconds)

    def poller(self) -> Poller:
        """One poller for connections of all kinds."""
        return self._transport(None).poller()

    def close(self) -> None:
        """Closes each of the transports."""
        for each in self._transports.values():
            each.close()

    def _transport(self, address: str | None) -> Transport:
        if address is None:
            return next(iter(self._transports.values()))
        scheme = address.partition(":")[0]
        if scheme not in self._transports:
            raise ConnectionError(f"this worker does not speak {scheme!r}, so not to {address}")
        return self._transports[scheme]
