from __future__ import annotations

import pytest

from lockstitch.errors import PlacementError
from lockstitch.ray.placement import Wish, give_back, reserve
from tests.unit.ray.cluster import FakeRay

ONE = {"CPU": 1.0}


@pytest.mark.parametrize(
    ("wish", "nodes", "fits"),
    [
        (Wish([ONE] * 4), [{"CPU": 2.0}, {"CPU": 2.0}], True),
        (Wish([ONE] * 5), [{"CPU": 2.0}, {"CPU": 2.0}], False),
        (Wish([{"CPU": 3.0}]), [{"CPU": 2.0}, {"CPU": 2.0}], False),
        (Wish([ONE] * 3, "STRICT_PACK"), [{"CPU": 2.0}, {"CPU": 2.0}], False),
        (Wish([ONE] * 3, "STRICT_PACK"), [{"CPU": 2.0}, {"CPU": 3.0}], True),
        (Wish([ONE] * 3, "STRICT_SPREAD"), [{"CPU": 9.0}, {"CPU": 9.0}], False),
        (Wish([ONE] * 2, "STRICT_SPREAD"), [{"CPU": 9.0}, {"CPU": 1.0}], True),
        (Wish([{"CPU": 1.0, "GPU": 1.0}]), [{"CPU": 4.0}], False),
        (Wish([ONE, {"CPU": 3.0}], "SPREAD"), [{"CPU": 3.0}, {"CPU": 1.0}], True),
    ],
)
def test_whether_nodes_have_room(wish, nodes, fits):
    assert wish.fits(nodes) is fits


@pytest.fixture
def cluster(monkeypatch):
    return FakeRay(("n1", "10.0.0.1", {"CPU": 2.0}), ("n2", "10.0.0.2", {"CPU": 2.0})).install(
        monkeypatch
    )


def test_room_is_reserved_and_given_back(cluster):
    group = reserve(Wish([ONE] * 4, "SPREAD"), None)
    assert [(bundles, strategy) for bundles, strategy, _ in cluster.groups] == [
        ([ONE] * 4, "SPREAD")
    ]
    assert group.waited == [100.0]
    give_back(group)
    assert cluster.removed == [group]


def test_what_the_nodes_could_never_have_is_waited_for_briefly_and_told_with_what_they_have(
    cluster,
):
    cluster.has_room = False
    with pytest.raises(PlacementError) as caught:
        reserve(Wish([ONE] * 5), None)
    assert "no room for 5 × (1 CPU), PACK in the Ray cluster within 10 s" in str(caught.value)
    assert "could not have it even if nobody else used them" in str(caught.value)
    assert "10.0.0.2 has 2 CPU and 0 GPU" in str(caught.value)
    assert [group for _, _, group in cluster.groups] == cluster.removed


def test_what_others_use_is_waited_for_as_long_as_was_said(cluster):
    cluster.has_room = False
    with pytest.raises(PlacementError, match=r"within 3 s: others use it at present"):
        reserve(Wish([ONE] * 4), 3.0)
    assert isinstance(PlacementError(""), TimeoutError)  # as the original raises


def test_dead_nodes_have_nothing(cluster):
    cluster.node_list[1]["Alive"] = False
    cluster.has_room = False
    with pytest.raises(PlacementError, match=r"could not have it.*nodes 10\.0\.0\.1 has 2 CPU"):
        reserve(Wish([ONE] * 3), None)
