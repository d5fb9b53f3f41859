from __future__ import annotations

import importlib

import pytest

from lockstitch.ray.base_worker import BaseHorovodWorker
from tests.unit.ray.cluster import FakeRay


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    return FakeRay(("n1", "10.0.0.1", {"CPU": 1.0})).install(monkeypatch)


@pytest.mark.parametrize("name", ["", ".worker", ".runner"])
def test_the_worker_is_found_where_programs_look_for_it(name):
    found = importlib.import_module(f"lockstitch.hvd.ray{name}")
    assert found.BaseHorovodWorker is BaseHorovodWorker


@pytest.mark.parametrize("name", ["runner.Coordinator", "elastic.TestDiscovery"])
def test_what_is_not_here_says_what_to_do_instead(name):
    module, _, wanted = name.partition(".")
    found = importlib.import_module(f"lockstitch.hvd.ray.{module}")
    with pytest.raises(ImportError, match=f"Lockstitch has no {wanted}: "):
        getattr(found, wanted)
    assert not hasattr(found, "anything_else")
