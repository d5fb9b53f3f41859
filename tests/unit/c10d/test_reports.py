"""What ranks do instead of coming."""

from __future__ import annotations

import threading

from torch.distributed import HashStore

from lockstitch.c10d.reports import Reports, Watch


def test_what_a_rank_has_said_last_is_read_and_nothing_of_the_silent() -> None:
    store = HashStore()
    mine, theirs = Reports(store, 0), Reports(store, 2)
    assert mine.read([1, 2]) == []
    theirs.post("rank 2: computes")
    theirs.post("rank 2: sleeps")
    (said,) = mine.read([1, 2])
    assert said.startswith("rank 2: sleeps (said at ")


class Group:
    def __init__(self, *, fails: bool = False) -> None:
        self.asked = threading.Event()
        self._fails = fails

    def report(self) -> None:
        self.asked.set()
        if self._fails:
            raise RuntimeError("it has ended")


def test_watch_asks_all_groups_until_its_end_and_begins_again(monkeypatch) -> None:
    monkeypatch.setattr("lockstitch.c10d.reports._LOOK_SECONDS", 1e-3)
    groups = [Group(), Group(fails=True)]
    watch = Watch(lambda: list(groups))
    for _ in range(2):
        watch.begin()
        watch.begin()
        for group in groups:
            assert group.asked.wait(30)
            group.asked.clear()
        watch.end()
        watch.end()
    for group in groups:
        group.asked.clear()
    assert not groups[0].asked.wait(0.01)
