"""How a rank takes its place in the tree: speakers say in the store where they listen, and all
connect to those to whom they talk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.coordinator_link import (
    CoordinatorClient,
    CoordinatorServer,
    Table,
    connect_to_coordinator,
)
from lockstitch.collectives.c10d.speaker_link import SpeakerServer
from lockstitch.collectives.c10d.tree_coordinator import TreeCoordinator
from lockstitch.errors import CollectiveError
from lockstitch.rendezvous import missing_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.distributed_c10d import Store

    from lockstitch.collectives.c10d.link_options import LinkOptions
    from lockstitch.collectives.c10d.messages import Message
    from lockstitch.collectives.c10d.tree import Place
    from lockstitch.transport import Listener, Transport

Link = CoordinatorServer | CoordinatorClient


@dataclass(frozen=True)
class TreeLinks:
    """What each rank of a session of `size` ranks knows for it. `root_address`: where rank 0
    listens. `look` is called now and then while one waits, and may raise."""

    place: Place
    size: int
    root_address: str
    store: Store
    transport: Transport
    options: LinkOptions
    look: Callable[[], object]

    def of_root(self, listener: Listener, hear: Callable[[Message], None], fusion: int) -> Link:
        """Returns the ends of rank 0, which listens already. `fusion`: up to how many bytes are
        fused."""
        place = self.place
        return CoordinatorServer(
            self._table(fusion),
            *(self.transport, listener, hear, self.options),
            expected=place.branches,
            speakers=place.speakers,
        )

    def of_other(self, hear: Callable[[Message], None]) -> Link:
        """Returns the end of another rank, or its ends where it speaks for others. Raises
        `CollectiveError` where its parent cannot be reached."""
        rank, parent = self.place.rank, self.place.parent
        self.options.place_of(parent)  # looked up while the store can tell, for when it is lost
        if not self.place.is_speaker:
            options = replace(self.options, coordinator_rank=parent)
            line = connect_to_coordinator(
                self.transport, self._address_of(parent), rank, options, self.look
            )
            return CoordinatorClient(rank, line, hear, options)
        listener = self._listen()
        try:
            options = replace(self.options, coordinator_rank=parent)
            line = connect_to_coordinator(
                self.transport, self._address_of(parent), rank, options, self.look
            )
        except BaseException:
            listener.close()
            raise
        own = replace(self.options, coordinator_rank=rank)
        return SpeakerServer(self.place, line, self.transport, listener, hear, link_options=own)

    # ------------------------------------------------------------ inside

    def _table(self, fusion: int) -> Table:
        if self.place.speakers:
            return TreeCoordinator(self.place, self.size, fusion, self.options.names)
        return Coordinator(self.size, fusion, self.options.names)

    def _listen(self) -> Listener:
        rank = self.place.rank
        try:
            listener = self.transport.listen()
        except OSError as error:
            raise CollectiveError(
                f"{self.options.names.one(rank)} cannot listen for the ranks for which it speaks "
                f"({error}): give the address of its host as SessionOptions.address, or "
                "LOCKSTITCH_ADDRESS"
            ) from error
        self.store.set(_key(rank), listener.address)
        return listener

    def _address_of(self, parent: int) -> str:
        if parent == 0:
            return self.root_address
        seconds = self.options.greeting_seconds
        if missing_keys(self.store, [_key(parent)], seconds):
            self.look()
            names = self.options.names
            raise CollectiveError(
                f"{names.one(parent)}{self.options.place_of(parent)} has not said within "
                f"{seconds:g} s where {names.one(self.place.rank)}, for which it speaks, can "
                "reach it"
            )
        return self.store.get(_key(parent)).decode()


def _key(rank: int) -> str:
    return f"speakers/{rank}"
