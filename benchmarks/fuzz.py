"""Frames and greetings that no worker would send, in any number: what does a worker make of them?

    python -m benchmarks.fuzz --frames 1000000
    python -m benchmarks.fuzz --guided --frames 1000000    (see `guided_fuzz`)

Takes true frames apart where they have joints (lengths, kinds, counts, headers of tensors, opcodes)
and puts them together wrongly; feeds them to what reads frames, seals, greetings and pickles. Each
is either read or refused by one of few errors. The process may meanwhile take only so much more
memory than before. Whatever else happens is printed with the seed that makes it happen again.
"""

from __future__ import annotations

import argparse
import marshal
import random
import resource
import struct
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import guided_fuzz
from lockstitch.errors import ProtocolError, SerializationError
from lockstitch.ids import GlobalId, WorkerId, WorkerInfo
from lockstitch.link.greetings import GreetingReader
from lockstitch.link.handshake import CallerHandshake, ListenerHandshake
from lockstitch.trust import Secret
from lockstitch.trust.registry import Registry
from lockstitch.wire.authentication import AuthenticatedFrameDecoder, FrameAuthenticator
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.frames import HEADER, FrameLimits
from lockstitch.wire.messages import (
    KINDS,
    Call,
    Fetch,
    ForksDeleted,
    Gradient,
    Payload,
    Reply,
    Stitch,
)
from lockstitch.wire.messages.backward import FAST
from lockstitch.wire.pickling import pack
from lockstitch.wire.unpickling import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMITS = FrameLimits(inline_bytes=1 << 20, bulk_bytes=1 << 22, items=64, nesting=32)
_MORE_BYTES = 1 << 30
_REFUSALS = (ProtocolError, SerializationError)
# Of values, not of frames: what constructors say to arguments that make no sense.
_REFUSED_VALUES = (TypeError, ValueError, RuntimeError)
_NUMBERS = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0xFFFF,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)
_SECRET = Secret(bytes(range(32)))
_KEY = bytes(range(32))
_PEER = WorkerInfo("peer", 1)


class Point:
    """What the registry of the reader knows."""

    def __init__(self, x: float = 0.0) -> None:
        self.x = x


def _registry() -> PicklingRegistry:
    registry = PicklingRegistry()
    registry.allowed = Registry([Point])
    return registry


def corpus() -> list[bytes]:
    """True frames of all sorts."""
    registry, ids = _registry(), GlobalId(1, 0, 7)
    values: list[Any] = [
        None,
        (1, "two", 3.0, b"four", None),
        [torch.arange(6.0), 1],
        {"a": [Point(1.0), torch.zeros(2, 3).t()], "b": "x" * 40},
        torch.arange(5000.0),
        [torch.tensor([1.0, 0.0, 2.0, 0.0]).to_sparse()],
        ValueError("no"),
    ]
    stitch = Stitch(3, ids, (0,), (WorkerId(2, 0),))
    messages: list[Any] = [ForksDeleted(1, 2, ((ids, ids),)), Fetch(4, ids, ids, 5, None, None)]
    for value in values:
        body = pack(value, registry)[0]
        messages += [Call(1, 3, b"m:f", 2.5, stitch, body), Reply(9, None, body)]
    shared = torch.arange(10.0)
    body = Payload(1, b"", (shared[:4], shared[2:], torch.nn.Parameter(shared)))
    messages.append(Gradient(3, ids, FAST, False, ids, (ids,), (), stitch, body))
    return [b"".join(map(bytes, encode(message))) for message in messages]


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """`frame` with a few wrong joints; its lengths are often put right again, so that what reads
    the rest is reached."""
    data = bytearray(frame)
    for _ in range(chance.randrange(1, 4)):
        if not data:
            break
        chance.choice(_MUTATIONS)(data, chance)
    if len(data) > HEADER.size and chance.random() < 0.7:
        _, kind, flags, number, small, bulk = HEADER.unpack_from(data)
        inline = max(0, len(data) - HEADER.size - bulk) if bulk < len(data) else 0
        HEADER.pack_into(data, 0, inline, kind, flags, number, min(small, inline), bulk)
    return bytes(data)


def _flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _put_number(data: bytearray, chance: random.Random) -> None:
    if len(data) >= 8:
        at, number = chance.randrange(len(data) - 7), chance.choice(_NUMBERS)
        struct.pack_into(chance.choice(("<B", "<H", "<I", "<Q")), data, at, number & 0xFF) if (
            chance.random() < 0.2
        ) else struct.pack_into("<I", data, at, number)


def _put_type(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at] = chance.choice(b"NTF.igylstuzZaA)([{<>rcR0") | chance.choice((0, 0x80))


def _cut(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randrange(1, 9)]


def _repeat(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    piece = data[at : at + chance.randrange(1, 17)]
    data[at:at] = piece * chance.choice((1, 2, 50))


def _change_kind(data: bytearray, chance: random.Random) -> None:
    if len(data) > 4:
        data[4] = chance.choice([*KINDS, 0, 255])


def _put_value(data: bytearray, chance: random.Random) -> None:
    value = chance.choice(
        [(), (1,) * 300, "x", -1, 1 << 70, None, ((), ()), (0x4FF, (2,), (1,), 0, 9)]
    )
    at = chance.randrange(len(data))
    data[at : at + chance.randrange(6)] = marshal.dumps(value)


_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _put_number,
    _put_type,
    _cut,
    _repeat,
    _change_kind,
    _put_value,
)


class Reader:
    """Reads as a worker does, and counts what came of it."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.registry = _registry()
        """What it may name."""

    def frame(self, data: bytes) -> None:
        """As what came on a connection of a peer."""
        decoder = FrameDecoder(LIMITS, is_strict=True)
        try:
            decoder.feed(data)
        except _REFUSALS:
            self.outcomes["frame refused"] += 1
            return
        assert len(decoder.space()) <= LIMITS.bulk_bytes + (1 << 18)
        self.outcomes["frame read" if decoder.messages else "more awaited"] += 1
        for message in decoder.messages:
            if isinstance(body := getattr(message, "body", None), Payload):
                self.value(body)

    def value(self, body: Payload) -> None:
        """As what a message of a peer carries."""
        try:
            unpack(body, self.registry)
        except (*_REFUSALS, *_REFUSED_VALUES):
            self.outcomes["value refused"] += 1
        else:
            self.outcomes["value read"] += 1

    def sealed(self, true: bytes, false: bytes) -> None:
        """As what somebody on the way has made of a sealed frame."""
        seal = FrameAuthenticator(_KEY)
        data = bytearray(b"".join(map(bytes, seal(0, [true]))))
        head = len(data) - len(true)
        data[head:] = false
        decoder = AuthenticatedFrameDecoder(_KEY, LIMITS)
        try:
            decoder.feed(data)
        except _REFUSALS:
            self.outcomes["seal broken"] += 1
            return
        if decoder.messages and not false.startswith(true):
            raise AssertionError("a changed frame was read")
        self.outcomes["more awaited"] += 1

    def greeting(self, chance: random.Random) -> None:
        """As what a stranger says first."""
        listener = ListenerHandshake(WorkerInfo("worker", 0), _SECRET, lambda _hello: "")
        caller = CallerHandshake(_PEER, WorkerId(0, 0), ("3", "2"), Secret(bytes(32)))
        said = caller.opening
        reader = GreetingReader()
        try:
            for _ in range(3):
                heard = mutated(said, chance) if chance.random() < 0.6 else said
                for greeting in greetings_in(reader, heard):
                    said = caller.take(listener.take(greeting)) or said
                    if listener.is_over:
                        break
                if listener.is_over:
                    break
        except _REFUSALS:
            self.outcomes["greeting refused"] += 1
        else:
            self.outcomes["stranger turned away"] += 1
        if listener.caller is not None:
            raise AssertionError("a stranger came in")


def greetings_in(reader: GreetingReader, said: bytes) -> Iterator[bytes]:
    """The greetings that these bytes complete."""
    rest = memoryview(said)
    while rest:
        space = reader.space()
        count = min(len(space), len(rest))
        space[:count] = rest[:count]
        rest = rest[count:]
        greeting = reader.absorb(count)
        if greeting is not None:
            yield greeting


def run(frames: int, seed: int) -> Counter[str]:
    """Tries so many; returns what came of them. Raises what should not have happened."""
    true, reader = corpus(), Reader()
    for number in range(frames):
        chance = random.Random(seed * 1_000_003 + number)
        try:
            frame = chance.choice(true)
            which = number % 10
            if which == 0:
                reader.greeting(chance)
            elif which == 1:
                reader.sealed(frame, mutated(frame, chance))
            else:
                reader.frame(mutated(frame, chance))
        except BaseException:
            print(f"--seed {seed}, frame {number} of it", file=sys.stderr)
            raise
    return reader.outcomes


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    parser.add_argument("--seconds", type=float, default=600, help="of a guided run, at most")
    parser.add_argument("--folder", default="out/fuzz", help="where a guided run keeps its inputs")
    parser.add_argument("--only", action="append", help="one target of a guided run")
    arguments = parser.parse_args()
    if arguments.guided:
        guided_fuzz.main(arguments)
        return
    torch.set_num_threads(1)
    run(2000, 0)  # whatever is made on first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + _MORE_BYTES,) * 2)
    began = time.perf_counter()
    outcomes = run(arguments.frames, arguments.seed)
    seconds = time.perf_counter() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{arguments.frames:,} in {seconds:.0f} s; memory grew by {grown / 1024:.0f} MiB at most")
    for outcome, count in outcomes.most_common():
        print(f"{count:12,}  {outcome}")


def _data_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return resource.RLIM_INFINITY


if __name__ == "__main__":
    main()
