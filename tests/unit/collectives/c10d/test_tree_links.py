"""How a rank finds those to whom it talks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch.distributed import HashStore

from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.collectives.c10d.tree import place_of
from lockstitch.collectives.c10d.tree_coordinator import TreeCoordinator
from lockstitch.collectives.c10d.tree_links import TreeLinks
from lockstitch.collectives.rank_names import RankNames
from lockstitch.errors import CollectiveError
from lockstitch.transport import TcpTransport
from lockstitch.trust import Secret

OPTIONS = LinkOptions.of("word", Secret(bytes(range(32))), 0.2)


def links(rank: int, hosts: tuple[int, ...], fan_in: int, **options: Any) -> TreeLinks:
    return TreeLinks(
        place_of(rank, hosts, fan_in),
        len(hosts),
        "tcp:127.0.0.1:1",
        HashStore(),
        TcpTransport(),
        replace(OPTIONS, **options),
        lambda: None,
    )


@pytest.mark.parametrize(("fan_in", "table"), [(3, Coordinator), (2, TreeCoordinator)])
def test_root_hears_speakers_where_there_are_many(fan_in: int, table: type) -> None:
    tree = links(0, (0, 1, 1), fan_in)
    root: Any = tree.of_root(tree.transport.listen(), lambda _message: None, 1)
    assert type(root._coordinator) is table
    root.close()


def test_speaker_that_does_not_say_where_it_listens_is_named() -> None:
    names = RankNames()
    names.learn_places(("alpha", "host beta", "gamma").__getitem__, "gamma")
    tree = links(2, (0, 1, 1), 2, names=names)
    with pytest.raises(CollectiveError, match="rank 1, on host beta has not said within 0.2 s"):
        tree.of_other(lambda _message: None)


def test_listener_of_a_speaker_whose_parent_is_not_there_is_closed() -> None:
    tree = links(1, (0, 1, 1), 2)
    with pytest.raises(CollectiveError, match="rank 0 cannot be reached"):
        tree.of_other(lambda _message: None)
    address = tree.store.get("speakers/1").decode()
    with pytest.raises((ConnectionError, TimeoutError)):
        TcpTransport().connect(address, 1.0)
