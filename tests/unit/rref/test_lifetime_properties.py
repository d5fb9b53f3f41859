"""The guarantees under any schedule: several workers, their programs, and a network that loses,
repeats and reorders.

The model below plays the service, the program and the network. What it checks needs no knowledge
of the protocol: a value that exists is never freed while somebody can still reach it, and once
everything is dropped and the network heals, nothing is left anywhere.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.ids import GlobalId, IdSource, WorkerId
from lockstitch.rref.events import (
    Abandoned,
    Arrived,
    Asked,
    Begin,
    Called,
    CameHome,
    Created,
    Dropped,
    Failed,
    Forked,
    Free,
    Received,
    Send,
    Settled,
    Shared,
    Tick,
    Withdrawn,
    WorkerLost,
)
from lockstitch.rref.lifetime import OwnerSide, State, UserSide

if TYPE_CHECKING:
    from lockstitch.wire.messages import Message

WORKERS = 4


# ---------------------------------------------------------------- what travels


@dataclass(frozen=True)
class Control:
    sender: WorkerId
    to: WorkerId
    message: Message


@dataclass(frozen=True)
class Cargo:
    """A message of the program that carries one reference."""

    sender: WorkerId
    to: WorkerId
    reference: GlobalId
    fork: GlobalId
    owner: WorkerId


@dataclass(frozen=True)
class Request:
    """A remote call (`begins`) or a fetch."""

    sender: WorkerId
    to: WorkerId
    reference: GlobalId
    fork: GlobalId
    serial: int
    begins: bool


@dataclass(frozen=True)
class Reply:
    sender: WorkerId
    to: WorkerId
    fork: GlobalId


@dataclass(frozen=True)
class Obituary:
    """How a worker comes to know of a death; never lost."""

    to: WorkerId
    dead: WorkerId


Packet = Control | Cargo | Request | Reply | Obituary


@dataclass(frozen=True)
class Handle:
    """An object of the program: a reference at the worker `at`; `fork` None at the owner."""

    at: WorkerId
    owner: WorkerId
    reference: GlobalId
    fork: GlobalId | None


@dataclass
class Node:
    id: WorkerId
    owner: OwnerSide = field(default_factory=OwnerSide)
    user: UserSide = field(default_factory=UserSide)
    values: set[GlobalId] = field(default_factory=set)
    """References whose value was made here and not freed."""
    alive: bool = True

    def __post_init__(self) -> None:
        self.next_id = IdSource(self.id)


class ImpossibleError(Exception):
    """The step drawn has nothing to act on now."""


class Workers:
    """Programs and network over the tables; nobody dies.

    Each step takes two numbers, with which it picks what to act on.
    """

    steps = (
        "make_a_value",
        "call_remote",
        "call_remote",
        "send_a_reference",
        "send_a_reference",
        "fetch",
        "drop",
        "time_out",
        "fail",
        "let_time_pass",
        "deliver",
        "deliver",
        "deliver",
        "deliver_and_repeat",
        "lose",
    )

    def __init__(self) -> None:
        self.failed: set[GlobalId] = set()
        """Forks whose call has failed."""
        self.nodes = {WorkerId(rank, 0): Node(WorkerId(rank, 0)) for rank in range(WORKERS)}
        self.network: list[Packet] = []
        self.handles: list[Handle] = []
        self.now = itertools.count(0.0, 0.7)

    # ------------------------------------------------------------ the service

    def tell_owner(self, node: Node, event: object) -> bool:
        """Returns whether a remote call may begin."""
        begun = False
        for todo in node.owner.handle(event):
            match todo:
                case Send(to, message):
                    self.post(Control(node.id, to, message))
                case Begin(reference):
                    node.values.add(reference)
                    begun = True
                case Free(reference):
                    assert reference not in node.values or not self.reachable(reference), (
                        f"{reference} was freed early"
                    )
                    node.values.discard(reference)
        return begun

    def tell_user(self, node: Node, event: object) -> None:
        for todo in node.user.handle(event):
            if isinstance(todo, Send):
                self.post(Control(node.id, todo.to, todo.message))

    def post(self, packet: Packet) -> None:
        if self.nodes[packet.to].alive:
            self.network.append(packet)

    def reachable(self, reference: GlobalId) -> bool:
        """Whether some user has the value, or a message with a reference to it is under way."""
        return any(
            handle.reference == reference and handle.fork is not None and self.is_usable(handle)
            for handle in self.handles
        ) or any(
            isinstance(packet, Cargo) and packet.reference == reference for packet in self.network
        )

    def is_usable(self, handle: Handle) -> bool:
        state = self.nodes[handle.at].user.state(handle.fork)
        return state is not State.ABANDONED and handle.fork not in self.failed

    def run(self, schedule: list[tuple[str, int, int]]) -> None:
        for step, first, second in schedule:
            try:
                getattr(self, step)(first, second)
            except ImpossibleError:
                continue
            self.confirmed_forks_are_counted()
        self.heal()

    def pick(self, things: list, number: int):
        if not things:
            raise ImpossibleError
        return things[number % len(things)]

    def living(self, number: int) -> Node:
        return self.pick([node for node in self.nodes.values() if node.alive], number)

    # ------------------------------------------------------------ the program

    def make_a_value(self, at: int, _: int) -> None:
        node = self.living(at)
        reference = node.next_id()
        node.values.add(reference)
        self.handles.append(Handle(node.id, node.id, reference, None))

    def call_remote(self, at: int, to: int) -> None:
        user = self.living(at)
        owner = self.pick([node for node in self.nodes.values() if node is not user], to)
        reference, fork = user.next_id(), user.next_id()
        self.tell_user(user, Created(reference, fork, owner.id))
        self.handles.append(Handle(user.id, owner.id, reference, fork))
        serial = user.user.serial(fork)
        self.post(Request(user.id, owner.id, reference, fork, serial, begins=True))

    def send_a_reference(self, which: int, to: int) -> None:
        handle = self.pick([handle for handle in self.handles if self.can_send(handle)], which)
        node, target = self.nodes[handle.at], self.pick(list(self.nodes), to)
        fork = node.next_id()
        if handle.fork is None:
            self.tell_owner(node, Shared(handle.reference, fork, target))
        else:
            self.tell_user(node, Forked(handle.fork, fork, target))
        self.post(Cargo(node.id, target, handle.reference, fork, handle.owner))

    def can_send(self, handle: Handle) -> bool:
        if handle.fork is None:
            return True
        state = self.nodes[handle.at].user.state(handle.fork)
        return state in (State.PENDING, State.CONFIRMED) and handle.fork not in self.failed

    def fetch(self, which: int, _: int) -> None:
        users = [each for each in self.handles if each.fork is not None and self.can_send(each)]
        handle = self.pick(users, which)
        serial = self.nodes[handle.at].user.serial(handle.fork)
        self.post(
            Request(handle.at, handle.owner, handle.reference, handle.fork, serial, begins=False)
        )

    def drop(self, which: int, _: int) -> None:
        handle = self.pick(self.handles, which)
        self.drop_handle(handle)

    def drop_handle(self, handle: Handle) -> None:
        self.handles.remove(handle)
        if handle.fork is not None:
            self.tell_user(self.nodes[handle.at], Dropped((handle.fork,)))

    def time_out(self, which: int, _: int) -> None:
        handle = self.one_created(which)
        self.tell_user(self.nodes[handle.at], Abandoned(handle.fork))

    def fail(self, which: int, _: int) -> None:
        handle = self.one_created(which)
        self.failed.add(handle.fork)
        self.tell_user(self.nodes[handle.at], Failed(handle.fork))

    def one_created(self, which: int) -> Handle:
        created = [
            handle
            for handle in self.handles
            if handle.fork is not None
            and handle.reference.worker == handle.at
            and handle.owner != handle.at
            and handle.fork.counter == handle.reference.counter + 1
        ]
        return self.pick(created, which)

    def let_time_pass(self, at: int, _: int) -> None:
        node = self.living(at)
        now = next(self.now)
        self.tell_owner(node, Tick(now))
        self.tell_user(node, Tick(now))

    # ------------------------------------------------------------ the network

    def deliver(self, which: int, _: int) -> None:
        packet = self.pick(self.network, which)
        self.network.remove(packet)
        self.arrive(packet)

    def deliver_and_repeat(self, which: int, _: int) -> None:
        self.arrive(self.pick([each for each in self.network if isinstance(each, Control)], which))

    def lose(self, which: int, _: int) -> None:
        packet = self.pick([each for each in self.network if not isinstance(each, Obituary)], which)
        self.network.remove(packet)
        if isinstance(packet, Cargo):
            self.withdraw(packet)

    def withdraw(self, cargo: Cargo) -> None:
        """The runtime tells a sender when a message of the program could not be sent."""
        node = self.nodes[cargo.sender]
        gone = Withdrawn(cargo.reference, cargo.fork)
        if node.alive and cargo.owner == cargo.sender:
            self.tell_owner(node, gone)
        elif node.alive:
            self.tell_user(node, gone)

    def arrive(self, packet: Packet) -> None:
        node = self.nodes[packet.to]
        match packet:
            case Control(sender, _, message):
                self.tell_owner(node, Arrived(sender, message))
                self.tell_user(node, Arrived(sender, message))
            case Request(sender, _, reference, fork, serial, begins):
                kind = Called if begins else Asked
                self.tell_owner(node, kind(sender, reference, fork, serial))
                if node.owner.counts(reference, fork):
                    self.post(Reply(node.id, sender, fork))
            case Reply(_, _, fork):
                self.tell_user(node, Settled(fork))
            case Cargo():
                self.unpack(node, packet)
            case Obituary(_, dead):
                self.tell_owner(node, WorkerLost(dead))
                self.tell_user(node, WorkerLost(dead))

    def unpack(self, node: Node, cargo: Cargo) -> None:
        if cargo.owner != node.id:
            handle = Handle(node.id, cargo.owner, cargo.reference, cargo.fork)
            self.handles.append(handle)
            self.tell_user(node, Received(cargo.reference, cargo.fork, cargo.owner, cargo.sender))
            return
        self.handles.append(Handle(node.id, node.id, cargo.reference, None))
        if cargo.sender == node.id:
            self.tell_owner(node, Withdrawn(cargo.reference, cargo.fork))
        else:
            self.tell_user(node, CameHome(cargo.fork, cargo.sender))

    # ------------------------------------------------------------ what must hold

    def confirmed_forks_are_counted(self) -> None:
        for handle in self.handles:
            user, owner = self.nodes[handle.at], self.nodes[handle.owner]
            if handle.fork is not None and owner.alive:
                state = user.user.state(handle.fork)
                if state is State.CONFIRMED:
                    assert owner.owner.counts(handle.reference, handle.fork)

    def heal(self) -> None:
        """Everything is dropped and the network heals: in the end all tables are empty."""
        for handle in list(self.handles):
            self.drop_handle(handle)
        now = next(self.now)
        for _ in range(12):
            while self.network:
                self.arrive_or_drop(self.network.pop(0))
            now += 31.0
            for node in self.nodes.values():
                if node.alive:
                    self.tell_owner(node, Tick(now))
                    self.tell_user(node, Tick(now))
        for node in self.nodes.values():
            if node.alive:
                self.nothing_is_left(node)

    def arrive_or_drop(self, packet: Packet) -> None:
        self.arrive(packet)
        for handle in list(self.handles):
            self.drop_handle(handle)

    def nothing_is_left(self, node: Node) -> None:
        assert node.owner.forks == {}
        assert node.user.is_empty
        assert node.user.pending == []
        assert not node.owner.wants_ticks
        assert not node.user.wants_ticks


class MortalWorkers(Workers):
    """The same with deaths. A reference that was under way from a worker that died may be lost with
    it, so what is promised early is less: a confirmed fork is counted, whoever dies."""

    steps = (*(4 * Workers.steps), "die")

    def reachable(self, reference: GlobalId) -> bool:
        return any(
            handle.reference == reference
            and handle.fork is not None
            and self.nodes[handle.at].user.state(handle.fork) is State.CONFIRMED
            for handle in self.handles
        )

    def die(self, which: int, _: int) -> None:
        living = [node for node in self.nodes.values() if node.alive]
        if len(living) <= 2:
            raise ImpossibleError
        dead = self.pick(living, which)
        dead.alive = False
        self.handles = [handle for handle in self.handles if handle.at != dead.id]
        self.network = [packet for packet in self.network if packet.to != dead.id]
        for node in self.nodes.values():
            self.post(Obituary(node.id, dead.id))


def schedules(steps: tuple[str, ...]) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    number = st.integers(min_value=0, max_value=30)
    return st.lists(st.tuples(st.sampled_from(steps), number, number), max_size=120)


@given(schedules(Workers.steps))
def test_no_schedule_frees_a_value_early_or_leaves_anything_behind(schedule):
    Workers().run(schedule)


@given(schedules(MortalWorkers.steps))
def test_deaths_neither_free_what_is_confirmed_nor_leave_anything_behind(schedule):
    MortalWorkers().run(schedule)


@settings(max_examples=30)
@given(seed=st.integers(min_value=0, max_value=2**32))
@pytest.mark.parametrize("model", [Workers, MortalWorkers])
def test_long_schedules_keep_the_same_promises(model, seed):
    draw = random.Random(seed)
    model().run(
        [
            (draw.choice(model.steps), draw.randrange(10**6), draw.randrange(10**6))
            for _ in range(500)
        ]
    )
