"""What a group is told; the group itself is tested on Ray (tests/engines)."""

from __future__ import annotations

import pytest

from lockstitch.errors import RpcError
from lockstitch.ray import workers
from lockstitch.ray.group import _Died, _Joined, _Member, _Parts
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


def test_what_ray_itself_raises_reaches_who_waits_and_stops_no_other_replacement(
    monkeypatch, capsys
):
    group = workers(["a", "b", "c"])
    members = [_Member(number, name, life=1, is_in=True) for number, name in enumerate("abc")]
    group._parts = _Parts(None, None, None, members=members)
    started = []

    def start(member):
        if member.name == "a":
            raise ConnectionError("the head of the cluster is gone")
        started.append(member.name)

    monkeypatch.setattr(group, "_start", start)
    members[2].is_in = False
    for event in (_Died("a", "killed"), _Died("b", "killed"), _Joined(2, 0, None), None):
        group._events.put(event)
    group._run()
    assert started == ["b"]
    assert "the head of the cluster is gone" in capsys.readouterr().err
    with pytest.raises(RpcError, match=r"'a' could not be started: the head .* is gone") as caught:
        group._wait_for_all()
    assert isinstance(caught.value.__cause__, ConnectionError)
