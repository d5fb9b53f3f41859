from __future__ import annotations

from lockstitch.launch.spread import seats


def test_ranks_are_numbered_host_by_host():
    assert seats((("a", 2), ("b", 3), ("c", 1)), 4) == [
        ("a", 0, 2),
        ("a", 1, 2),
        ("b", 0, 2),
        ("b", 1, 2),
    ]
