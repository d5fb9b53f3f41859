from __future__ import annotations

import threading

from lockstitch.fences import Fence


def test_a_fence_leaves_its_lock_free():
    fence = Fence()
    fence()
    assert not fence._lock.locked()


def test_an_interrupt_that_left_the_lock_taken_blocks_nobody():
    fence = Fence()
    fence._lock.acquire()
    done = threading.Event()
    threading.Thread(target=lambda: (fence(), done.set()), daemon=True).start()
    assert done.wait(10)
    assert not fence._lock.locked()
