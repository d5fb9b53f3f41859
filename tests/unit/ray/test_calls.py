from __future__ import annotations

import pytest

from lockstitch.errors import SerializationError
from lockstitch.ray.calls import Call
from tests.unit.ray.cluster import FakeRay


@pytest.fixture
def cluster(monkeypatch):
    return FakeRay().install(monkeypatch)


def test_a_call_is_kept_by_ray_as_it_is(cluster):
    call = Call(max, [1, 2], {"default": 0})
    assert call.put() is call


def test_what_cannot_be_pickled_is_said_before_anything_is_sent(cluster):
    def train():
        """What a worker would run."""

    def refuse(value):
        raise TypeError("cannot pickle '_thread.lock' object")

    cluster.module.put = refuse
    with pytest.raises(SerializationError, match=r"train cannot be sent to workers: .*lock"):
        Call(train).put()


def test_what_cannot_be_called_is_refused(cluster):
    with pytest.raises(TypeError, match="workers run a function, not 'train'"):
        Call("train").put()
