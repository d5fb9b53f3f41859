"""Operations on several cores go on after the idle threads have been ended."""

from __future__ import annotations

import threading

import torch

from lockstitch.nn.slots.openmp import end_idle_threads


def test_operations_on_several_cores_go_on():
    x = torch.randn(200_000)
    expected = x.double().sum()
    for _ in range(3):
        torch.testing.assert_close(x.double().sum(), expected)
        end_idle_threads()
        end_idle_threads()
    torch.testing.assert_close((x + x).double().sum(), 2 * expected)


def test_each_thread_ends_its_own():
    x = torch.randn(200_000)
    results = []

    def work():
        for _ in range(20):
            results.append((x * 2).double().sum())
            end_idle_threads()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    assert len({result.item() for result in results}) == 1
