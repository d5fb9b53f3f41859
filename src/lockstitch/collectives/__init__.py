"""Operations over all ranks: allreduce, allgather, broadcast and their kin, negotiated by name.

A session's route: `session` → negotiation → a backend.

- `session`: one rank's part: submits, waits; `opening` makes one,
  `rank_entries`: from what the ranks have published
- `operations`: what it can be asked for, one method for each
- `requests`: what a rank asks for, and what the others must know of it
- `checks`: what is wrong with a request whatever others do
- `request_cache`: what stays the same each time a name is submitted
- `handles`, `pending_operations`: operations under way on this rank;
  `repeated`: one like another before
- `process_sets`, `topology`: who takes part, and where everybody stands;
  `rank_names`: how the ranks are called in what people read
- `events`: what a session tells those who look on
- `negotiation`: who is ready for what, as a table; no I/O
- `arithmetic`: what an operation computes, in plain torch; `copying`: how bytes are moved
- `outcomes`: how an operation ends for a rank
- `fusion`: how tensors are put together and cut apart; no I/O
- `options`: what can be chosen
- `mappings`: memory that other processes may see or write, too;
  `aliasing`: tensors of one request in the same memory
- `device_routes`: which route tensors of a device take, as `placement` decides;
  `nccl_bootstrap`: how the ranks find each other for NCCL
- `staging`, `host_memory`: how tensors of a device pass through host memory
- `backend`: the interface below the session, implemented by
  - `shared_memory`: the ranks of one host, through memory that all of them map
  - `c10d`: over torch.distributed, between hosts, also in two levels
  - `memory`: several ranks in one process, for tests
"""

from lockstitch.collectives.events import Observers, Progress, Stall, Statistics, Step
from lockstitch.collectives.handles import Handle
from lockstitch.collectives.memory import LocalSessions
from lockstitch.collectives.opening import call_off, open_session
from lockstitch.collectives.options import SessionOptions
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.requests import (
    AVERAGE,
    GLOBAL_SET,
    SUM,
    Kind,
    ReduceOp,
    Reduction,
    Request,
)
from lockstitch.collectives.session import Session
from lockstitch.collectives.topology import Topology

__all__ = [
    "open_session",
    "call_off",
    "SessionOptions",
    "Session",
    "LocalSessions",
    "Handle",
    "Request",
    "Kind",
    "Reduction",
    "ReduceOp",
    "SUM",
    "AVERAGE",
    "ProcessSet",
    "GLOBAL_SET",
    "Topology",
    "Observers",
    "Progress",
    "Step",
    "Stall",
    "Statistics",
]
