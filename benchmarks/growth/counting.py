"""What real workers say to each other, and to the store, counted where it leaves them.

This is apart from `processes`, where times are taken. In each process, before it joins, the sending
end of the connections within one host is replaced, and the store as `init_rpc` gets it.
"""

from __future__ import annotations

import functools
import tempfile
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from benchmarks.growth.stores import Asked, CountingStore, StoreTally
from benchmarks.growth.work import WARM_UP_TIMES, Counts, call, counted, find, run_backward
from benchmarks.libraries import CALLER, RAW
from benchmarks.member import Do, Seat
from benchmarks.worlds import START_SECONDS, Member, all_do
from lockstitch import rpc
from lockstitch.rendezvous import sealed_by
from lockstitch.rpc import startup
from lockstitch.testing.traffic import FrameCounter, Traffic, kind_of
from lockstitch.transport.ring_stream import RingStream
from lockstitch.transport.stream import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lockstitch.transport.base import Buffer

_HEAD_BYTES = 8


def count_world(size: int, patience_seconds: float, log: Path) -> Counts:
    """So many processes come; the first one calls the last, and finds all; then all go together.
    Raises CaseError where a worker fails or does not answer in time."""
    names = [f"worker{rank:04}" for rank in range(size)]
    members: list[Member] = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        place = f"file://{folder}/meeting"
        try:
            members += [Member(Seat(RAW, CALLER, 0, 1, ""), log) for _ in names]
            for member in members:
                member.answer(START_SECONDS)
            orders = [Do(_join, (name, rank, size, place)) for rank, name in enumerate(names)]
            all_do(members, orders, patience_seconds)
            return _count(_World(members, patience_seconds), names)
        finally:
            for member in members:
                member.kill()


class _World:
    """The processes, and what all of them have said so far."""

    def __init__(self, members: list[Member], patience_seconds: float) -> None:
        self._members = members
        self._patience_seconds = patience_seconds

    def all_do(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        orders = [Do(function, arguments)] * len(self._members)
        return all_do(self._members, orders, self._patience_seconds)

    def said(self) -> tuple[Traffic, Asked]:
        frames, requests = zip(*self.all_do(_said), strict=True)
        return reduce(add, frames), reduce(add, requests)

    def repeat(self, work: Callable[..., None], argument: Any) -> Traffic:
        """What the first worker's last time cost."""
        order = Do(_work, (work, argument))
        for _ in range(WARM_UP_TIMES):
            self._members[0].carry_out(order, self._patience_seconds)
        (before, asked_before) = self.said()
        self._members[0].carry_out(order, self._patience_seconds)
        (after, asked) = self.said()
        assert asked == asked_before, "the store is only for the start"
        return after - before


def _count(world: _World, names: list[str]) -> Counts:
    sent, started = world.said()
    assert not sent.messages, "a start is between each worker and the store"
    calls = world.repeat(call, names[-1])
    passes = world.repeat(run_backward, names[-1])
    found = world.repeat(find, names)
    before, _ = world.said()
    world.all_do(_shut_down)
    after, _ = world.said()
    end = after - before
    return Counts(
        *counted(calls),
        *counted(passes),
        counted(found)[0],
        started.requests,
        started.bytes,
        end.messages,
        end.bytes,
    )


# ---------------------------------------------------------------- in the worker's process


@functools.cache
def _tallies() -> tuple[FrameCounter, StoreTally]:
    """Of this process."""
    return FrameCounter(), StoreTally()


def _join(_library: None, name: str, rank: int, size: int, place: str) -> None:
    frames, requests = _tallies()
    send = RingStream.send

    def send_counted(
        self: RingStream, buffers: Sequence[Buffer], *arguments: Any, **options: Any
    ) -> None:
        head = bytes(memoryview(buffers[0]).cast("B")[:_HEAD_BYTES])
        frames.note_sent(name, kind_of(head), sum(map(size_of, buffers)))
        send(self, buffers, *arguments, **options)

    def store_counted(*arguments: Any) -> Any:
        return CountingStore(sealed_by(*arguments), requests)

    RingStream.send = send_counted  # type: ignore[method-assign]
    startup.sealed_by = store_counted  # type: ignore[assignment, attr-defined]
    options = rpc.TensorPipeRpcBackendOptions(init_method=place)
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)


def _said(_library: None) -> tuple[Traffic, Asked]:
    frames, requests = _tallies()
    return frames.traffic(), requests.asked


def _work(_library: None, work: Callable[..., None], argument: Any) -> None:
    work(argument)


def _shut_down(_library: None) -> None:
    rpc.shutdown()
