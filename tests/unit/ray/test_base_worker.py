from __future__ import annotations

import os
import queue
import socket
import sys

import pytest

from lockstitch.ray.base_worker import BaseHorovodWorker
from lockstitch.ray.log import LOG, log
from tests.unit.ray.cluster import FakeRay


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return FakeRay(("n1", "10.0.0.1", {"CPU": 1.0})).install(monkeypatch)


def test_a_worker_of_a_program_knows_its_rank_and_does_what_it_is_told():
    worker = BaseHorovodWorker(1, 3)
    worker.update_env_vars({"OF_MINE": 7})
    told = {"HOROVOD_HOSTNAME": socket.gethostname(), "HOROVOD_RANK": "1", "HOROVOD_SIZE": "3"}
    assert {**told, "OF_MINE": "7"}.items() <= worker.env_vars().items()
    assert worker.execute(lambda it: it) is None
    worker.start_executable(dict, [[("a", 1)]], {"b": 2})
    assert worker.execute(sorted) == ["a", "b"]
    sys.modules["ray"].get_gpu_ids = lambda: [2]  # type: ignore[attr-defined]
    assert worker.get_gpu_ids() == [2]


def test_what_its_rank_logs_goes_to_its_queue():
    heard: queue.Queue[str] = queue.Queue()
    worker = BaseHorovodWorker()
    try:
        worker.set_queue(heard)
        log("a loss")
    finally:
        LOG.configure(None)
    assert heard.get_nowait() == "a loss"
