"""A whole tree in one process: rank 0, speakers and ranks, and messages on their way between them,
which are delivered in any order that keeps that of each connection."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from lockstitch.collectives.c10d import messages
from lockstitch.collectives.c10d.messages import (
    Detailed,
    Joined,
    Message,
    Order,
    Refused,
    unpack_described,
)
from lockstitch.collectives.c10d.speaker import Speaker
from lockstitch.collectives.c10d.tree import NOBODY, place_of
from lockstitch.collectives.c10d.tree_coordinator import TreeCoordinator
from lockstitch.collectives.negotiation import Objection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.c10d.routes import Addressed


class Tree:
    """The nodes and what is between them. `heard`: what each rank has been told, in order.
    `at_once`: how many messages, from whomever, a node hears together."""

    def __init__(
        self, hosts: Sequence[int], fan_in: int, fusion_bytes: int = 1, at_once: int = 1
    ) -> None:
        self.at_once = at_once
        self.places = [place_of(rank, hosts, fan_in) for rank in range(len(hosts))]
        self.root = TreeCoordinator(self.places[0], len(hosts), fusion_bytes)
        self.speakers = {place.rank: Speaker(place) for place in self.places if place.is_speaker}
        self.heard: list[list[Message]] = [[] for _ in hosts]
        self.under_way: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)

    def tell(self, rank: int, message: Message) -> None:
        """What a rank says goes on its way."""
        place = self.places[rank]
        node = rank if place.is_speaker or place.parent == NOBODY else place.parent
        self.under_way[rank, node].append(messages.encode(message))

    def deliver(self, choose: Callable[[list[tuple[int, int]]], tuple[int, int]]) -> bool:
        """Delivers what one node hears next; returns False where there is nothing. `choose` says of
        which connection: the sender and the receiver."""
        if not (ways := self._ways()):
            return False
        _, receiver = way = choose(ways)
        told = [self._take(way)]
        while len(told) < self.at_once and (ways := self._ways(receiver)):
            told.append(self._take(choose(ways)))
        self._receive(receiver, told)
        return True

    def _ways(self, receiver: int | None = None) -> list[tuple[int, int]]:
        return [
            way for way, queue in self.under_way.items() if queue and receiver in (None, way[1])
        ]

    def _take(self, way: tuple[int, int]) -> tuple[int, Message]:
        return way[0], messages.decode(self.under_way[way].popleft())

    def deliver_all(
        self, choose: Callable[[list[tuple[int, int]]], tuple[int, int]] = lambda ways: ways[0]
    ) -> None:
        """Delivers what is under way, and what follows from it."""
        while self.deliver(choose):
            pass

    def send(self, node: int, addressed: Sequence[Addressed]) -> None:
        """What a node says goes on its way; to its own rank at once."""
        for to, message in addressed:
            if to == node:
                self.heard[node].append(message)
            else:
                self.under_way[node, to].append(messages.encode(message))

    def _receive(self, receiver: int, told: list[tuple[int, Message]]) -> None:
        if receiver == 0:
            self.send(0, self.root.hear(told))
        elif receiver in self.speakers:
            self.send(receiver, self.speakers[receiver].hear(told))
        else:
            self.heard[receiver] += [message for _, message in told]


def outcomes(heard: Sequence[Message]) -> dict[object, object]:
    """What has become of each number of a rank, and how often all have joined: who was last depends
    on when it is heard."""
    joins = sum(isinstance(message, Joined) for message in heard)
    found: dict[object, object] = {"joined": joins} if joins else {}
    for message in heard:
        if isinstance(message, Order):
            for number in message.numbers:
                found[number] = "performed"
        elif isinstance(message, Detailed) and message.number >= 0:
            found[message.number] = ("performed", unpack_described(message.described))
        elif isinstance(message, Refused):
            # Who of those that have left is named depends on who had left by then.
            text = "" if message.objection == Objection.LEFT else message.text
            found[message.number] = ("refused", message.objection, text)
    return found
