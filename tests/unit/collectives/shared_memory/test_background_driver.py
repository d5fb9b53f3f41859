"""The thread that drives when nobody else does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockstitch.collectives.shared_memory.background_driver import BackgroundDriver

if TYPE_CHECKING:
    import pytest


class Driven:
    """Something under way, until it was driven."""

    def __init__(self) -> None:
        self.turns = 0
        self.is_busy = True
        self.was_driven = threading.Event()

    def drive_unattended(self) -> None:
        self.is_busy = False
        self.was_driven.set()


def test_it_drives_when_nobody_does_and_again_after_parking() -> None:
    driven = Driven()
    background = BackgroundDriver("background", driven)
    assert background.is_parked
    for _ in range(2):
        driven.is_busy = True
        driven.was_driven.clear()
        background.look_after()
        assert driven.was_driven.wait(30)
    background.close()
    background.close()


def test_it_leaves_alone_what_somebody_drives() -> None:
    class Restless(Driven):
        looked = 0

        @property  # type: ignore[override]
        def turns(self) -> int:
            self.looked += 1
            if self.looked > 20:
                self.is_busy = False
                self.was_looked_at.set()
            return self.looked

        @turns.setter
        def turns(self, _value: int) -> None:
            self.was_looked_at = threading.Event()

    driven = Restless()
    background = BackgroundDriver("background", driven)
    background.look_after()
    assert driven.was_looked_at.wait(30)
    background.close()
    assert not driven.was_driven.is_set()


def test_it_ends_without_a_word_when_what_it_looks_after_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    driven = Driven()
    background = BackgroundDriver("background", driven)
    background.look_after()
    assert driven.was_driven.wait(30)
    (thread,) = (each for each in threading.enumerate() if each.name == "background")
    del driven
    thread.join(30)
    assert not thread.is_alive()
    assert not failures
