"""The network in memory: who reaches whom, and what the script does to frames on their way."""

from __future__ import annotations

import pytest

from lockstitch.testing.clock import ManualClock
from lockstitch.testing.faults import Faults
from lockstitch.transport.memory import MemoryNetwork
from lockstitch.wire.messages import Call, Fetch, Message, Reply
from tests.unit.transport.streams import receive_some


class Pair:
    """Workers `w0` and `w1`, the first connected to the second."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock, faults)
        self.transports = [self.network.transport(name) for name in ("w0", "w1")]
        self.listener = self.transports[1].listen()
        self.near = self.transports[0].connect(self.listener.address, 1.0)
        far = self.listener.accept()
        assert far is not None
        self.far = far

    def received(self) -> str:
        """The letters that have come to `w1`; a full stop for the end of the stream."""
        letters = ""
        while True:
            try:
                some = receive_some(self.far, timeout_seconds=0)
            except BlockingIOError:
                return letters
            if not some:
                return letters + "."
            letters += some[5:].decode()


def frame(cls: type[Message], letter: str) -> list[bytes]:
    """The beginning of a frame header, cut in the middle, and a letter."""
    return [bytes(4), bytes([cls.KIND]) + letter.encode()]


def send(pair: Pair, *messages: tuple[type[Message], str]) -> None:
    for cls, letter in messages:
        pair.near.send(frame(cls, letter))


def test_without_faults_everything_arrives_in_order():
    pair = Pair()
    send(pair, (Call, "a"), (Reply, "b"), (Call, "c"))
    assert pair.received() == "abc"


def test_a_dropped_frame_is_lost_and_the_next_is_not():
    pair = Pair(Faults().drop(Call))
    send(pair, (Call, "a"), (Call, "b"))
    assert pair.received() == "b"


def test_a_delayed_frame_arrives_by_the_clock():
    pair = Pair(Faults().delay(Reply, by=5))
    send(pair, (Reply, "a"), (Call, "b"))
    assert pair.received() == "b"
    pair.clock.advance(5)
    assert pair.received() == "a"


def test_a_repeated_frame_arrives_again():
    pair = Pair(Faults().repeat(Call, copies=2))
    send(pair, (Call, "a"), (Call, "b"))
    assert pair.received() == "aaab"


def test_a_frame_out_of_order_arrives_behind_the_next():
    pair = Pair(Faults().reorder(Call))
    send(pair, (Call, "a"), (Reply, "b"), (Reply, "c"))
    assert pair.received() == "bac"


def test_a_worker_dies_after_a_frame():
    pair = Pair(Faults().kill("w1", after=Fetch))
    send(pair, (Call, "a"), (Fetch, "b"))
    assert pair.received() == "ab."
    with pytest.raises(ConnectionError):
        send(pair, (Call, "c"))
    with pytest.raises(ConnectionRefusedError):
        pair.transports[0].connect(pair.listener.address, 1.0)
    with pytest.raises(ConnectionError, match="is closed"):
        pair.transports[1].listen()


def test_a_killed_worker_may_come_back_under_its_name():
    pair = Pair()
    pair.network.kill("w1")
    listener = pair.network.transport("w1").listen()
    near = pair.transports[0].connect(listener.address, 1.0)
    assert listener.accept() is not None
    near.close()


def test_the_script_knows_sender_and_receiver_in_both_directions():
    pair = Pair(Faults().drop(sender="w1", to="w0"))
    pair.far.send(frame(Reply, "a"))
    pair.far.send(frame(Reply, "b"))
    send(pair, (Call, "c"))
    assert receive_some(pair.near, timeout_seconds=0)[5:] == b"b"
    assert pair.received() == "c"


def test_what_is_too_short_to_be_a_frame_is_delivered():
    pair = Pair(Faults().drop(times=None))
    pair.near.send([b"1234"])
    assert receive_some(pair.far) == b"1234"


def test_a_partition_loses_frames_and_lets_nobody_connect_until_it_heals():
    pair = Pair()
    pair.network.partition("w1", "w0")
    send(pair, (Call, "a"))
    with pytest.raises(TimeoutError, match="partitioned"):
        pair.transports[0].connect(pair.listener.address, 1.0)
    pair.network.heal("w0", "w1")
    send(pair, (Call, "b"))
    assert pair.received() == "b"
    pair.transports[0].connect(pair.listener.address, 1.0)


def test_listeners_have_addresses_of_their_own():
    transport = MemoryNetwork().transport("w0")
    first, second = transport.listen(), transport.listen()
    assert first.address != second.address
    with pytest.raises(OSError, match="is taken"):
        transport.listen(first.address)
    first.close()
    assert transport.listen(first.address).address == first.address


def test_a_closed_listener_refuses_whoever_waits():
    transport = MemoryNetwork().transport("w0")
    listener = transport.listen()
    waiting = transport.connect(listener.address, 1.0)
    listener.close()
    listener.close()
    assert listener.accept() is None
    assert receive_some(waiting) == b""
    with pytest.raises(ConnectionRefusedError):
        transport.connect(listener.address, 1.0)


def test_a_closed_transport_makes_nothing_new():
    network = MemoryNetwork()
    there = network.transport("w1").listen()
    transport = network.transport("w0")
    transport.close()
    with pytest.raises(ConnectionError, match="is closed"):
        transport.connect(there.address, 1.0)


def test_everything_can_be_looked_at():
    pair = Pair(Faults().drop(Call))
    texts = [repr(each) for each in (pair.network, *pair.transports, pair.listener, pair.near)]
    assert texts == [
        "<MemoryNetwork · 1 listeners · <Faults: drop(Call) [0 seen]>>",
        "<MemoryTransport of 'w0' · open>",
        "<MemoryTransport of 'w1' · open>",
        "<MemoryListener at 'memory:w1/1' · 0 waiting>",
        "<MemoryConnection to 'memory:w1/1'>",
    ]
