"""One updates at a time, on each worker for itself."""

from __future__ import annotations

import threading

import torch

from lockstitch.optim.update_lock import UpdateLock
from lockstitch.testing.cluster import LocalCluster


def test_turns_belong_to_the_worker() -> None:
    with LocalCluster(2) as cluster:
        assert UpdateLock.of(cluster[0]) is UpdateLock.of(cluster[0])
        assert UpdateLock.of(cluster[0]) is not UpdateLock.of(cluster[1])


def test_only_one_has_its_turn() -> None:
    with LocalCluster(1) as cluster:
        turns = UpdateLock.of(cluster[0])
        inside, most = 0, 0
        together = threading.Barrier(4)

        def update() -> None:
            nonlocal inside, most
            together.wait(10)
            for _ in range(200):
                with turns:
                    inside += 1
                    most = max(most, inside)
                    inside -= 1

        threads = [threading.Thread(target=update) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert most == 1


def test_an_error_ends_the_turn() -> None:
    with LocalCluster(1) as cluster:
        turns = UpdateLock.of(cluster[0])
        try:
            with turns:
                raise ValueError("no")
        except ValueError:
            pass
        with turns:
            pass


def test_who_comes_after_a_turn_casts_new_values_while_another_thread_is_in_autocast() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    has_cast, may_end = threading.Event(), threading.Event()

    def run() -> float:
        with torch.autocast("cpu", torch.bfloat16):
            return float((torch.ones(1, 3) @ weight).detach().sum())

    def linger() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            run()
            has_cast.set()
            may_end.wait(10)

    other = threading.Thread(target=linger)
    other.start()
    has_cast.wait(10)
    with LocalCluster(1) as cluster, UpdateLock.of(cluster[0]):
        weight.data.mul_(64)
    seen = run()
    may_end.set()
    other.join()
    assert seen == 9 * 64
