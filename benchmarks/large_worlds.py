"""What a world of thousands of ranks asks of each of its processes: real tables, no network.

    python -m benchmarks.large_worlds [--per-host 8] [--buckets 8]

*Negotiation*: the tables of rank 0 and of speakers (`collectives.c10d`) are given the messages of
one step, as bytes, and what they answer is made bytes again; a system call for each message is
added as measured here. *Busy* is the node that has most to do in a step of so many buckets, each
of which all ranks submit; *latency* is what passes from the last submission of one bucket to the
last order for it, with 30 µs for each message between hosts.

*Start*: all ranks meet (`rendezvous.join`) in a store that counts what each asks and reads, each
in a thread; then each looks up whom it needs to take its place in the tree.

*Launcher*: the table of an elastic job takes in that all workers are ready.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import Store

from benchmarks.reductions_at_scale import system_call_seconds
from lockstitch.collectives import SUM
from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.messages import Define, Order, Submit, decode, encode
from lockstitch.collectives.c10d.speaker import Speaker
from lockstitch.collectives.c10d.tree import NOBODY, Place, place_of
from lockstitch.collectives.c10d.tree_coordinator import TreeCoordinator
from lockstitch.collectives.requests import Description, Kind
from lockstitch.collectives.topology import Topology
from lockstitch.launcher_link.rank_coordinator import (
    CameReady,
    CoordinatorOptions,
    HostsFound,
    RankCoordinator,
)
from lockstitch.rendezvous import join, large_group, missing_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from lockstitch.collectives.c10d.messages import Message
    from lockstitch.collectives.c10d.routes import Addressed
    from lockstitch.rendezvous import StaticRoster

FAN_IN = 64
HOP_SECONDS = 30e-6
_TOGETHER = 64
_REPEATS = 5


# ---------------------------------------------------------------- negotiation


class Node:
    """Rank 0 or a speaker: its table, and what goes in and out as bytes."""

    def __init__(self, place: Place, size: int, call_seconds: float) -> None:
        self.place = place
        self._call_seconds = call_seconds
        self._table: Any
        if place.parent != NOBODY:
            self._table = Speaker(place)
        elif place.speakers:
            self._table = TreeCoordinator(place, size, 1)
        else:
            self._table = Coordinator(size, 1)
        self.tellers = (*place.branches, place.rank)

    def take_in(self, told: Sequence[tuple[int, Message]]) -> tuple[float, list[Addressed]]:
        """Returns how long it takes to read, decide and answer, and the answers."""
        sent = [(teller, encode(message)) for teller, message in told]
        answers: list[Addressed] = []
        calls = len(sent)
        begin = time.perf_counter()
        for first in range(0, len(sent), _TOGETHER):
            some = [(teller, decode(body)) for teller, body in sent[first : first + _TOGETHER]]
            for answer in self._table.hear(some):
                encode(answer.message)
                answers.append(answer)
        seconds = time.perf_counter() - begin
        calls += sum(answer.to != self.place.rank for answer in answers)
        return seconds + calls * self._call_seconds, answers

    def define(self, buckets: int) -> None:
        """All who talk to it say what their numbers mean."""
        for number in range(buckets):
            description = Description(Kind.ALLREDUCE, f"b{number}", ("float32",), ((1024,),), SUM)
            content = description.encode().decode()
            self.take_in([(teller, Define(number, 0, (), content)) for teller in self.tellers])


@dataclass(frozen=True)
class Step:
    """What one node has to do in a step, in seconds: for all buckets, and from when the last
    message for a bucket is there until what follows has been said, upwards and downwards."""

    busy: float
    up: float
    down: float


def step_of(node: Node, buckets: int) -> Step:
    """Runs some steps; the fastest counts."""
    node.define(buckets)
    found = [_one_step(node, buckets) for _ in range(_REPEATS)]
    return Step(*(min(each[part] for each in found) for part in range(3)))


def _one_step(node: Node, buckets: int) -> tuple[float, float, float]:
    busy = up = down = 0.0
    for number in range(buckets):
        *others, last = node.tellers
        seconds, _ = node.take_in([(teller, Submit(number)) for teller in others])
        up, answers = node.take_in([(last, Submit(number))])
        busy += seconds + up
        if node.place.parent != NOBODY:
            # What it has said upwards is answered: the same, with its own number in it.
            orders = [(node.place.parent, _order_for(answers))]
            down, _ = node.take_in(orders)
            busy += down
    return busy, up, down


def _order_for(answers: Iterable[Addressed]) -> Message:
    (number,) = (a.message.number for a in answers if isinstance(a.message, Submit))
    return Order((number,))


def way_down(size: int, hosts: Sequence[int], fan_in: int) -> list[Place]:
    """Returns the nodes from rank 0 to a speaker of the deepest level, by way of the busiest."""
    found = [place_of(0, hosts, fan_in)]
    while found[-1].speakers:
        below = [place_of(rank, hosts, fan_in) for rank in found[-1].speakers]
        found.append(max(below, key=lambda place: (len(place.speakers), len(place.branches))))
    assert all(place.rank < size for place in found)
    return found


def negotiation(size: int, per_host: int, buckets: int, call: float) -> tuple[float, float, int]:
    """Returns the work of the busiest node in a step, the latency of a bucket, and the levels."""
    hosts = [rank // per_host for rank in range(size)]
    places = way_down(size, hosts, FAN_IN)
    steps = [step_of(Node(place, size, call), buckets) for place in places]
    hops = 2 * len(places) * HOP_SECONDS
    latency = hops + sum(step.up for step in steps) + sum(step.down for step in steps)
    return max(step.busy for step in steps), latency, len(places)


def flat(size: int, buckets: int, call: float) -> float:
    """Returns the same work where all ranks talk to rank 0."""
    everybody = {rank: (rank,) for rank in range(1, size)}
    return step_of(Node(Place(0, NOBODY, everybody), size, call), buckets).busy


# ---------------------------------------------------------------- the start


class SharedValues:
    """The values of all clients of a store, in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self._waiting: dict[str, threading.Event] = {}

    def set(self, key: str, value: bytes) -> None:
        with self.lock:
            self.values[key] = value
            event = self._waiting.pop(key, None)
        if event is not None:
            event.set()

    def wait(self, key: str) -> None:
        with self.lock:
            if key in self.values:
                return
            event = self._waiting.setdefault(key, threading.Event())
        event.wait()


class CountingClient(Store):
    """A client of such a store, which counts the requests that wait for an answer, and the bytes
    that go to and fro."""

    def __init__(self, shared: SharedValues, counts: Counter[str] | None = None) -> None:
        super().__init__()
        self._shared = shared
        self.counts = Counter() if counts is None else counts

    def _count(self, said: int, read: int, *, is_answered: bool = True) -> None:
        self.counts["steps"] += is_answered
        self.counts["bytes"] += said + read

    def set(self, key: str, value: str | bytes) -> None:
        content = value.encode() if isinstance(value, str) else value
        self._count(len(key) + len(content), 0, is_answered=False)
        self._shared.set(key, content)

    def get(self, key: str) -> bytes:
        self._shared.wait(key)
        value = self._shared.values[key]
        self._count(len(key), len(value))
        return value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        values = [self._shared.values[key] for key in keys]
        self._count(sum(map(len, keys)), sum(map(len, values)))
        return values

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        del expected
        content = desired.encode() if isinstance(desired, str) else desired
        with self._shared.lock:
            is_new = key not in self._shared.values
        if is_new:
            self._shared.set(key, content)
        value = self._shared.values[key]
        self._count(len(key) + len(content), len(value))
        return value

    def add(self, key: str, amount: int) -> int:
        with self._shared.lock:
            value = int(self._shared.values.get(key, b"0")) + amount
            self._shared.values[key] = str(value).encode()
        self._count(len(key) + 8, 8)
        return value

    def check(self, keys: Sequence[str]) -> bool:
        self._count(sum(map(len, keys)), 1)
        return all(key in self._shared.values for key in keys)

    def wait(self, keys: Sequence[str], *_timeout: timedelta) -> None:
        self._count(sum(map(len, keys)), 1)
        for key in keys:
            self._shared.wait(key)

    def clone(self) -> CountingClient:
        return CountingClient(self._shared, self.counts)


def start(size: int, per_host: int) -> tuple[int, int, float]:
    """Returns the most steps and bytes of any rank, and the seconds that it took in all."""
    shared = SharedValues()
    clients = [CountingClient(shared) for _ in range(size)]
    hosts = Topology(0, tuple(rank // per_host for rank in range(size))).hosts

    def run(rank: int) -> None:
        store, kind = clients[rank], f"1.0.0 host-{rank // per_host}"
        addresses = [f"door:lockstitch-{rank:012d}", "coordinator:tcp:10.0.0.1:31234"]
        roster = join(store, f"rank{rank}", rank, size, addresses, 600, kind=kind, is_shared=False)
        take_place(store, roster, place_of(rank, hosts, FAN_IN))

    # Nobody is late here, though so many threads of one process may be.
    large_group.missing_keys = partial(missing_keys, notice_seconds=600.0)  # type: ignore[attr-defined]
    threading.stack_size(1 << 18)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    most = {what: max(client.counts[what] for client in clients) for what in ("steps", "bytes")}
    return most["steps"], most["bytes"], seconds


def take_place(store: CountingClient, roster: StaticRoster, place: Place) -> None:
    """Looks up what a rank needs to connect: rank 0's entry, its parent's, and where that
    listens (`c10d.tree_links`)."""
    roster.fetch({0, max(0, place.parent)})
    if place.is_speaker:
        store.set(f"speakers/{place.rank}", "tcp:10.0.0.1:31234")
    if place.parent > 0:
        store.wait([f"speakers/{place.parent}"])
        store.get(f"speakers/{place.parent}")


def launcher(size: int, per_host: int) -> float:
    """Returns the seconds that the launcher of an elastic job needs until all ranks are told."""
    table = RankCoordinator(CoordinatorOptions(wanted=size), 0.0)
    begin = time.perf_counter()
    table.handle(HostsFound(tuple((f"h{n}", per_host) for n in range(size // per_host))), 0.0)
    for worker in range(size):
        table.handle(CameReady(worker), 1.0)
        assert table.deadline is None or worker < size
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--most", type=int, default=4096, help="ranks in threads, for the start")
    arguments = parser.parse_args()
    call, per_host = system_call_seconds(), arguments.per_host
    print(f"a step of {arguments.buckets} buckets, {per_host} ranks to a host; times in ms")
    print("  ranks   all to rank 0   busiest node   latency   levels")
    for size in (64, 512, 4096, 100_000):
        alone = f"{1e3 * flat(size, arguments.buckets, call):.1f}" if size <= 4096 else "-"
        busy, latency, levels = negotiation(size, per_host, arguments.buckets, call)
        print(f"{size:7}{alone:>16}{1e3 * busy:15.2f}{1e3 * latency:10.2f}{levels:9}")
    print("  ranks   steps of a rank   bytes of a rank   launcher")
    for size in (64, 512, 4096):
        if size <= arguments.most:
            steps, count, _ = start(size, per_host)
            table = 1e3 * launcher(size, per_host)
            print(f"{size:7}{steps:18}{count:18}{table:11.1f}")


if __name__ == "__main__":
    main()
