"""The connections of a speaker: what it tells its parent of the ranks below it."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.collectives.c10d.coordinator_link import (
    CoordinatorClient,
    CoordinatorServer,
    connect_to_coordinator,
)
from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.collectives.c10d.messages import Leave, Lost, Message, Welcome
from lockstitch.collectives.c10d.speaker_link import SpeakerServer
from lockstitch.collectives.c10d.tree import place_of
from lockstitch.collectives.c10d.tree_coordinator import TreeCoordinator
from lockstitch.transport import TcpTransport
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = (0, 1, 1)
OPTIONS = LinkOptions.of("word", Secret(bytes(range(32))), 60.0)


class Tree:
    """Rank 0, rank 1, which speaks for rank 2, and the latter once it comes."""

    def __init__(self) -> None:
        self.heard: list[SimpleQueue[Message]] = [SimpleQueue() for _ in HOSTS]
        self.ends: list[Any] = []
        root, transport = place_of(0, HOSTS, 2), TcpTransport()
        listener = transport.listen()
        self.ends.append(
            CoordinatorServer(
                TreeCoordinator(root, 3, 1),
                *(transport, listener, self.heard[0].put, OPTIONS),
                expected=root.branches,
                speakers=root.speakers,
            )
        )
        transport = TcpTransport()
        below = transport.listen()
        line = connect_to_coordinator(transport, listener.address, 1, OPTIONS)
        options = replace(OPTIONS, coordinator_rank=1, heartbeat=self.heartbeat)
        self.ends.append(
            SpeakerServer(
                place_of(1, HOSTS, 2),
                line,
                transport,
                below,
                self.heard[1].put,
                link_options=options,
            )
        )
        self.address = below.address

    heartbeat = 0.0

    def come(self) -> None:
        options = replace(OPTIONS, coordinator_rank=1)
        line = connect_to_coordinator(TcpTransport(), self.address, 2, options)
        self.ends.append(CoordinatorClient(2, line, self.heard[2].put, options))

    def close(self) -> None:
        for end in reversed(self.ends):
            end.close()


@pytest.fixture
def tree() -> Iterator[Tree]:
    tree = Tree()
    yield tree
    tree.close()


def test_all_are_welcome_when_the_last_has_come_to_its_speaker(tree: Tree) -> None:
    assert all(heard.empty() for heard in tree.heard)
    tree.come()
    assert [heard.get(timeout=30) for heard in tree.heard] == [Welcome()] * 3


def test_speaker_that_shuts_down_says_so_for_those_below(tree: Tree) -> None:
    tree.come()
    for heard in tree.heard:
        heard.get(timeout=30)
    tree.ends[1].close()
    assert tree.heard[2].get(timeout=30) == Leave(1)
    assert tree.heard[0].empty()


def test_rank_whose_line_breaks_is_named_to_all(tree: Tree) -> None:
    tree.come()
    for heard in tree.heard:
        heard.get(timeout=30)
    tree.ends[2]._line.close()
    for heard in tree.heard[:2]:
        lost = heard.get(timeout=30)
        assert isinstance(lost, Lost)
        assert lost.rank == 2


def test_speaker_whose_parent_is_gone_tells_those_below(tree: Tree) -> None:
    tree.come()
    for heard in tree.heard:
        heard.get(timeout=30)
    for line in list(tree.ends[0]._lines.values()):
        line.close()
    for heard in tree.heard[1:]:
        lost = heard.get(timeout=30)
        assert isinstance(lost, Lost)
        assert lost.rank == 0
