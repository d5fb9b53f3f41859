from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch import fences
from lockstitch.fences import STORES_ARE_ORDERED, Fence

if TYPE_CHECKING:
    import pytest


def test_a_fence_leaves_its_lock_free():
    fence = Fence()
    fence()
    fence()
    assert not fence._lock.locked()


class Lock:
    taken = 0

    def __enter__(self):
        self.taken += 1

    def __exit__(self, *_error):
        pass


def test_things_may_move_into_one_lock_but_not_through_two(monkeypatch: pytest.MonkeyPatch):
    fence = Fence()
    fence._lock = lock = Lock()
    fence()
    assert lock.taken == (1 if STORES_ARE_ORDERED else 2)
    monkeypatch.setattr(fences, "LOCKINGS", (0, 1))
    fence()
    assert lock.taken == (3 if STORES_ARE_ORDERED else 4)
