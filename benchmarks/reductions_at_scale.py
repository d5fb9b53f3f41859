"""What a step's reductions take with 8 to 4,096 ranks: real tables, and a model of the rest.

    python -m benchmarks.reductions_at_scale [--megabytes 100] [--buckets 8] [--per-host 8]

*Negotiation* is no model: the table of rank 0 (`collectives.c10d.coordinator`) is given the
messages of so many ranks, as bytes, and its answers are made bytes again; a system call for each
message is added as measured here. *Reduction* is a model: a message takes `alpha`, a byte `1/beta`.

    ring of all ranks    2 (W-1) alpha + 2 (W-1)/W n/beta
    in two levels        n/local + 2 (H-1) alpha + 2 (H-1)/H n/beta + n/local      H hosts

`local` is the rate of `shared_memory`, measured here. The last lines compare what is predicted from
small cases with what is measured in large ones, and what rank 0 is busy with for one bucket with
the time that really passes until all ranks of a session over TCP know of it.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from benchmarks.collectives import negotiation, processes
from lockstitch.collectives import SUM, open_session
from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.messages import (
    Define,
    Message,
    Submit,
    decode,
    encode,
)
from lockstitch.collectives.requests import Description, Kind
from lockstitch.link.authentication import MAC_BYTES, mac_of

if TYPE_CHECKING:
    from collections.abc import Iterable

WORLDS = (8, 64, 512, 1024, 4096)
MB = 1 << 20
_LENGTH_BYTES = 4  # of each record of a line
_ARRIVE_TOGETHER = 64
_REPEATS = 3


@dataclass(frozen=True)
class Network:
    """What connects hosts."""

    alpha_seconds: float = 30e-6
    bytes_per_second: float = 12.5e9  # 100 Gb/s

    def ring_seconds(self, members: int, size: int) -> float:
        """An allreduce of `size` bytes around a ring."""
        moved = 2 * (members - 1) / members * size
        return 2 * (members - 1) * self.alpha_seconds + moved / self.bytes_per_second


@dataclass(frozen=True)
class Negotiated:
    """What rank 0 does in one step."""

    seconds: float
    bytes_from_each: float
    bytes_to_each: float


def negotiate(ranks: int, buckets: int) -> Negotiated:
    """A steady step: every rank submits every bucket, and gets its orders. All names are known."""
    hub = Coordinator(ranks, fusion_bytes=1)
    members = tuple(range(ranks))
    for number in range(buckets):
        description = Description(Kind.ALLREDUCE, f"b{number}", ("float32",), ((1024,),), SUM)
        content = description.encode().decode()
        hub.hear((rank, Define(number, 0, members, content)) for rank in members)
    sent = [(rank, encode(Submit(number))) for number in range(buckets) for rank in members]
    answers = 0
    begin = time.perf_counter()
    for at in range(0, len(sent), _ARRIVE_TOGETHER):
        some = sent[at : at + _ARRIVE_TOGETHER]
        notes = hub.hear(_decoded(some))
        answers += sum(_LENGTH_BYTES + len(encode(note.message)) for note in notes)
    seconds = time.perf_counter() - begin
    told = sum(_LENGTH_BYTES + len(each) for _, each in sent)
    return Negotiated(seconds, told / ranks, answers / ranks)


def _decoded(sent: Iterable[tuple[int, bytes]]) -> list[tuple[int, Message]]:
    return [(rank, decode(content)) for rank, content in sent]


def system_call_seconds() -> float:
    """To send, or receive, a few bytes."""
    near, far = socket.socketpair()
    with near, far:
        begin = time.perf_counter()
        for _ in range(2000):
            near.send(b"123456789")
            far.recv(64)
        return (time.perf_counter() - begin) / 4000


def mac_seconds() -> float:
    """To seal a message, or to check that (only where the job has a secret)."""
    key, content = bytes(32), encode(Submit(1))
    begin = time.perf_counter()
    for number in range(2000):
        mac_of(key, number, content)
    return (time.perf_counter() - begin) / 2000


def local_rate(size: int) -> float:
    """Bytes per second at which two ranks of this host reduce private tensors."""
    with processes(2, _reduce, size) as pipes:
        return size / pipes[0].recv()


def _reduce(rank: int, ranks: int, file: str, pipe: Any, size: int) -> None:
    torch.set_num_threads(1)
    with open_session(rank, ranks, dist.FileStore(file)) as session:
        tensor = torch.zeros(size // 4)
        times = []
        for _ in range(12):
            session.barrier()
            begin = time.perf_counter()
            session.wait(session.allreduce(tensor, SUM, name="tensor", output=tensor))
            times.append(time.perf_counter() - begin)
        pipe.send(statistics.median(times[2:]))
        session.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--per-host", type=int, default=8)
    arguments = parser.parse_args()
    network, size = Network(), arguments.megabytes * MB
    call, mac, rate = system_call_seconds(), mac_seconds(), local_rate(25 * MB)
    heads = ("ranks", "negotiation", "KB at rank 0", "ring of all", "in two levels")
    print(f"A step of {arguments.megabytes} MB in {arguments.buckets} buckets; times in ms")
    print("".join(f"{head:>15}" for head in heads))
    per_message = {}
    for ranks in WORLDS:
        told = min(
            (negotiate(ranks, arguments.buckets) for _ in range(_REPEATS)),
            key=lambda each: each.seconds,
        )
        messages = 2 * ranks * arguments.buckets
        per_message[ranks] = told.seconds / messages
        hosts = max(ranks // arguments.per_host, 1)
        flat = network.ring_seconds(ranks, size)
        levels = size / rate * (1 + (hosts > 1)) + network.ring_seconds(hosts, size)
        cells = (
            f"{1e3 * (told.seconds + messages * call):15.1f}",
            f"{ranks * (told.bytes_from_each + told.bytes_to_each) / 1024:15.1f}",
            f"{1e3 * flat:15.1f}",
            f"{1e3 * levels:15.1f}",
        )
        print(f"{ranks:15}" + "".join(cells))
    to_and_fro = (told.bytes_from_each + told.bytes_to_each) / arguments.buckets
    print(f"{to_and_fro:.0f} bytes for each rank and bucket; a call takes {1e6 * call:.1f} µs")
    print(f"with a secret {2 * MAC_BYTES} bytes more, and {1e6 * mac:.1f} µs for each message")
    small, ratio = per_message[64], per_message[4096] / per_message[64]
    print(f"a message at rank 0: {1e6 * small:.1f} µs; among 4,096 ranks {ratio:.2f} times that")
    for ranks in (2, 4):
        measured = negotiation(ranks, 200, "c10d").median
        predicted = 1e6 * 2 * ranks * (small + call)
        print(
            f"a bucket of {ranks} ranks: {predicted:.0f} µs of rank 0, known after {measured:.0f}"
        )
    larger = local_rate(100 * MB) / rate
    print(f"25 MB locally: {rate / 1e9:.1f} GB/s; 100 MB {larger:.2f} times that")


if __name__ == "__main__":
    main()
