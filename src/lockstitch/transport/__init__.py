"""Bytes between two workers; nothing here knows what they mean.

- `base`: the seam: `Transport`, `Listener`, `Connection`, `Poller`
- `handshake`: the first words on each connection, and the proof in them, made of
  - `greetings`: what is said there, as bytes
- `stream`: connections and listeners over sockets, made by
  - `unix`: between the processes of one user on one machine
  - `tcp`: between machines
  - `tls`: likewise, so that nobody on the way can read or change anything
- `ring_stream`, `ring`: memory beside a unix stream, for short messages to one who looks
- `segments`, `leases`: shared memory beside a unix stream, its sending and its receiving end, made
  of
  - `mapping`: memory that two processes map
  - `handover`: how one gives it to the other
  - `tables`: who has which of it
  - `reserve`: descriptors kept back for what is given
- `warm`: memory kept warm for what arrives in streams
- `pools`, `blocks`: what both lend by, and its bookkeeping
- `several`: several kinds as one transport
- `polling`: waiting for many sockets (epoll)
- `waker`: waking who waits for one
- `spin`: waiting for one, briefly, without going to sleep
- `memory`, `memory_streams`: the twin inside one process, with scripted faults
- `forks`: forked children let go of their parent's sockets
"""

from lockstitch.transport.base import Buffer, Connection, Listener, Pollable, Poller, Transport
from lockstitch.transport.memory import MemoryNetwork, MemoryTransport
from lockstitch.transport.several import SeveralTransports
from lockstitch.transport.spin import Spinner
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.unix import UnixTransport

__all__ = [
    "Transport",
    "Listener",
    "Connection",
    "Poller",
    "Pollable",
    "Buffer",
    "UnixTransport",
    "TcpTransport",
    "SeveralTransports",
    "MemoryNetwork",
    "MemoryTransport",
    "Spinner",
]
