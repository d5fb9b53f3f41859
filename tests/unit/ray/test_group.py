"""What a group is told; the group itself is tested on Ray (tests/engines)."""

from __future__ import annotations

import pytest

from lockstitch.ray import workers
from tests.unit.ray.cluster import FakeRay


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    return FakeRay(("n1", "10.0.0.1", {"CPU": 2.0})).install(monkeypatch)


def test_workers_are_numbered_or_named():
    assert list(workers(2)) == ["worker0", "worker1"]
    group = workers(["ps", "trainer"], resources_per_worker={"CPU": 2}, placement="PACK")
    assert (len(group), group.names) == (2, ("ps", "trainer"))
    assert str(group._plan.wish()) == "2 × (2 CPU), PACK"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": 0}, "at least one worker"),
        ({"workers": ["a", "a"]}, "different names"),
        ({"workers": ["driver"]}, "different names"),
        ({"placement": "ANYWHERE"}, "placement is one of PACK, SPREAD"),
        ({"max_restarts": -2}, "max_restarts"),
        ({"resources_per_worker": {}}, "needs some resources"),
        ({"resources_per_worker": {"CPU": 0}}, "needs some resources"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        workers(**arguments)


def test_a_group_has_no_workers_outside_of_its_block():
    with pytest.raises(RuntimeError, match="outside of its block"):
        workers(1).restarts("worker0")
