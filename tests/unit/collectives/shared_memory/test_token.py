"""Who drives, and who is woken next, whatever interrupts them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from lockstitch.collectives import Kind
from lockstitch.collectives.handles import Handle
from lockstitch.collectives.request_cache import CachedRequest
from lockstitch.collectives.requests import Request
from lockstitch.collectives.shared_memory.token import Token
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere

MODULES = (
    "lockstitch.collectives.shared_memory.token",
    "lockstitch.collectives.handles",
    "lockstitch.interrupts",
    __name__,
)


def handle() -> Handle[Any]:
    request = Request(Kind.BARRIER, "b", (torch.ones(1),))
    return Handle(request, CachedRequest(request, 0))


def nothing() -> None:
    """Nobody is to be called off."""


def test_only_one_has_it() -> None:
    token, tries = Token(), []
    assert not token.is_held()
    assert token.hold(lambda: tries.extend([token.hold(nothing), token.is_held()]))
    assert tries == [False, True]
    assert token.hold(nothing)


def test_interrupted_holder_lets_it_go() -> None:
    def attempt(number: int) -> Interrupter:
        token = Token()
        with interrupted(number, *MODULES) as interrupter:
            token.hold(nothing)
        assert token.hold(nothing), interrupter.where
        return interrupter

    assert strike_everywhere(attempt) > 4


def test_interrupted_follower_is_not_taken_for_one_who_waits() -> None:
    def attempt(number: int) -> Interrupter:
        token = Token()
        gone, waits = handle(), handle()

        def work() -> None:
            with interrupted(number, *MODULES) as interrupter:
                token.follow(gone, nothing, 0)
            struck.append(interrupter)
            signal = waits.signal()
            follower = threading.Thread(target=token.follow, args=(waits, nothing, 60))
            follower.start()
            while not token._followers:
                signal.wait(0.001)
            woken.append(follower)

        struck: list[Interrupter] = []
        woken: list[threading.Thread] = []
        token.hold(work)  # and promotes the one who waits
        woken[0].join(10)
        assert not woken[0].is_alive(), struck[0].where
        assert not token.is_wanted
        return struck[0]

    assert strike_everywhere(attempt) > 4


def test_who_calls_the_helper_off_wants_it_until_then() -> None:
    token, follower = Token(), handle()
    seen = []

    def call_off() -> None:
        token.is_wanted = True
        seen.append(token.is_wanted)

    token.hold(lambda: token.follow(follower, call_off, 0))
    assert seen == [True]
    assert not token.is_wanted
