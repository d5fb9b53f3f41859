from __future__ import annotations

from lockstitch.fences import Fence


def test_a_fence_leaves_its_lock_free():
    fence = Fence()
    fence()
    fence()
    assert not fence._lock.locked()
