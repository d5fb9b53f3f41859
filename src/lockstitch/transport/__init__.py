"""Bytes between two workers; nothing here knows what they mean.

- `base`: the seam: `Transport`, `Listener`, `Connection`, `Poller`
- `stream`: connections and listeners over sockets, made by
  - `unix`: between the processes of one user on one machine
  - `tcp`: between machines
  - `tls`: likewise, so that nobody on the way can read or change anything
- `ring_stream`: a unix stream with a ring of shared memory beside it, for who looks
- `several`: several kinds as one transport
- `polling`: waiting for many sockets (epoll)
- `waker`: waking who waits for one
- `spin`: waiting for one, briefly, without going to sleep
- `courtesy`: when the CPU is offered to others meanwhile, and when to sleep instead
- `placement`: who waits on the processor of the other end goes elsewhere, and does not spin there
- `memory`, `memory_streams`: the twin inside one process, with scripted faults
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
