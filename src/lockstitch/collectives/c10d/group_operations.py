"""What a process group of torch.distributed does for us: a few operations, in an agreed order.

The groups are our own, made from the store; torch's default group is neither used nor needed. Gloo
moves bytes. What is reduced in host memory goes by chunks over connections of the ranks' own
(`exchange`, `peer_connections`). What NCCL cannot reduce is gathered as bytes and reduced by each
rank.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import ReduceOp as TorchOp
from torch.distributed.distributed_c10d import PrefixStore

from lockstitch.collectives.arithmetic import scaled_copy
from lockstitch.collectives.c10d.ahead import MOST_RANKS, AheadOnLine
from lockstitch.collectives.c10d.chunk_transfer import (
    PeerFailedError,
    PeerLine,
    PeerSilentError,
    send_ahead,
    transfer,
)
from lockstitch.collectives.c10d.exchange import (
    LEAST_CHUNK_BYTES,
    Exchange,
    chunks_of,
    parts_of,
)
from lockstitch.collectives.c10d.gloo_connections import GlooConnections, address_of_gloo, listening
from lockstitch.collectives.rank_names import RankNames
from lockstitch.collectives.requests import Kind, ReduceOp
from lockstitch.devices.kinds import gpu, is_gpu
from lockstitch.errors import CollectiveError, RankLostError
from lockstitch.link.sockets import silence_bounded
from lockstitch.torch_internals.distributed import AllgatherOptions, set_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.distributed_c10d import Store

    from lockstitch.collectives.arithmetic import Scale
    from lockstitch.collectives.c10d.peer_connections import PeerConnections
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request

_OPS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: TorchOp.SUM,
    ReduceOp.AVERAGE: TorchOp.SUM,
    ReduceOp.MIN: TorchOp.MIN,
    ReduceOp.MAX: TorchOp.MAX,
    ReduceOp.PRODUCT: TorchOp.PRODUCT,
    ReduceOp.BAND: TorchOp.BAND,
    ReduceOp.BOR: TorchOp.BOR,
    ReduceOp.BXOR: TorchOp.BXOR,
}
# What NCCL reduces.
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint8,
)
# An operation begins when all ranks are ready for it, and who dies meanwhile is seen by rank 0's
# connection to it. So this is for a network that swallows what is sent, and for a connection of
# Gloo's own that fails between two ranks that live: Gloo then waits, on all of them. NCCL watches
# its connections itself; there it is torch's own default.
_NCCL_TIMEOUT = timedelta(minutes=30)
MOST_CONNECTED = 64
"""Up to so many ranks of a set connect to each other at once when it is opened, so that it is seen
who cannot; more of them when they first have something for each other."""
_LOOK_SECONDS = 0.2
_ABANDONED_LOOK_SECONDS = 1.0
# What a network is expected to carry at least.
_BYTES_PER_SECOND = 1 << 20
# What Gloo says of a connection: `Read error [10.0.0.2]:4242: Connection timed out. …`
_BROKEN = re.compile(r"\w[\w ]* \[(?P<address>[\da-fA-F.:]+)\]:\d+(: [^.]+)?")
_SILENT = os.strerror(errno.ETIMEDOUT)
_PLACE_BYTES = 256


class GroupOperations:
    """The operations over process groups, one for each process set.

    `seconds`: how long an operation may take beside the time that the bytes take, and
    `connect_seconds`, by default as long, the ranks of a set to connect to each other when it is
    opened, which all do at the same time. `address`: at which Gloo awaits the others, unless
    GLOO_SOCKET_IFNAME names an interface; by default it finds one by itself. `silence_seconds`:
    after how long a rank that acknowledges nothing is given up, 0 for never; `names`: what it is
    called then. `peers`: the connections for reductions in host memory; without them there are none
    among several ranks."""

    least_chunk_bytes = LEAST_CHUNK_BYTES

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        rank: int,
        store: Store,
        device: str,
        seconds: float = 60.0,
        address: str | None = None,
        connect_seconds: float | None = None,
        *,
        silence_seconds: float = 0.0,
        names: RankNames | None = None,
        peers: PeerConnections | None = None,
    ) -> None:
        self._silence_seconds = silence_seconds
        self._peers = peers
        self._exchanges: Counter[int] = Counter()
        """How many reductions there have been in each process set."""
        self._ahead: defaultdict[int, AheadOnLine] = defaultdict(AheadOnLine)
        """What has gone ahead to and from each rank."""
        self._names = names or RankNames()
        self._address = address_of_gloo(address)
        self._seconds = seconds
        self._connect_seconds = seconds if connect_seconds is None else connect_seconds
        self.device = torch.device(device)
        if self.device == torch.device("cuda"):
            self.device = gpu()
        self._rank = rank
        self._store = store
        self.is_aborted = False
        """Whether what waits for others has been ended."""
        self._found_at: dict[int, tuple[str, str]] = {}
        """At which address Gloo finds each rank, and which host that is."""
        self._groups: dict[int, Any] = {}  # torch's own stubs do not agree about them
        self._connections: dict[str, GlooConnections] = {}
        """Those of Gloo, by the name of a group in the store."""

    @contextmanager
    def opening(self) -> Iterator[Callable[[], object]]:
        """A context manager around `open_set`. What it gives is called now and then meanwhile, in
        another thread, so that connections to hosts that do not answer are given up."""

        def look() -> None:
            bound_now()
            self.check_silence()

        # Gloo waits for as long as the system does, whatever it is told.
        seconds = 0.0 if is_gpu(self.device) else self._silence_seconds
        with silence_bounded(seconds) as bound_now:
            yield look

    def check_silence(self) -> None:
        """Raises `RankLostError` where the host of a rank that is connected is silent."""
        if self._peers is not None:
            self._peers.check_silence()

    def open_set(self, process_set: ProcessSet) -> None:
        """Prepares for a set. All ranks of the session call this, its members or not."""
        if not process_set.includes(self._rank):
            return
        self._groups[process_set.id] = self._new_group(process_set)
        reducing = self._reducing(process_set)
        if self._peers is not None and self._rank in reducing and len(reducing) <= MOST_CONNECTED:
            self._peers.connect(reducing, self._connect_seconds)

    def close_set(self, process_set: ProcessSet) -> None:
        self._exchanges.pop(process_set.id, None)
        self._connections.pop(f"set{process_set.id}", None)
        group = self._groups.pop(process_set.id, None)
        if group is None:
            return
        if is_gpu(self.device):
            group.abort()  # `shutdown` would wait for the other ranks
        else:
            group.shutdown()

    def can_reduce(self, dtype: torch.dtype) -> bool:
        """Returns whether `reduce` takes it."""
        return not is_gpu(self.device) or dtype in _DTYPES

    def reduce(
        self,
        flat: torch.Tensor,
        op: ReduceOp,
        scale: Scale,
        process_set: ProcessSet,
        sent: Sequence[int] = (),
    ) -> None:
        """Reduces a vector, in place; an average is only summed. The result is scaled. `sent`: the
        numbers under which all have sent its first parts ahead, by position."""
        if not is_gpu(self.device):
            chunks = self._cut(flat)
            for _ in self._reduced(chunks, chunks, op, scale, process_set, sent):
                pass
            return
        options = distributed.AllreduceOptions()
        options.reduceOp = _OPS[op]
        options.timeout = self._may_last(flat, 2)
        self._groups[process_set.id].allreduce([flat], options).wait()
        scale.apply_(flat)

    def may_send_ahead(self, request: Request, process_set: ProcessSet) -> bool:
        """Returns whether `send_ahead` takes it: the same for all ranks that give the same, but for
        how their tensors lie."""
        if request.kind is not Kind.ALLREDUCE or len(request.tensors) != 1:
            return False
        (tensor,) = request.tensors
        return (
            not is_gpu(self.device)
            and 1 < process_set.size <= MOST_RANKS
            and tensor.numel() >= process_set.size
            and tensor.device == self.device
            and tensor.is_contiguous()
        )

    def send_ahead(self, request: Request, number: int, process_set: ProcessSet) -> None:
        """Sends the first parts of what will be reduced, without waiting; see `ahead`."""
        assert request.reduction is not None
        lines = self._lines(process_set.ranks)
        first = self._cut(request.tensors[0].view(-1))[0]
        for position, part in enumerate(parts_of(first, process_set.size)):
            if position in lines:
                if request.reduction.prescale != 1.0:
                    scaled_copy(part, request.reduction.prescale, scaled := torch.empty_like(part))
                    part = scaled
                send_ahead(lines[position], process_set.id, number, part)

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return chunks_of(flat, self.least_chunk_bytes)

    def _lines(self, ranks: tuple[int, ...]) -> dict[int, PeerLine]:
        """The connections to the others of these ranks, by position."""
        assert self._peers is not None
        streams = self._peers.connect(ranks, self._connect_seconds)
        return {
            ranks.index(rank): PeerLine(stream, self._ahead[rank])
            for rank, stream in streams.items()
        }

    def _reducing(self, process_set: ProcessSet) -> tuple[int, ...]:
        """The ranks of a process set that exchange chunks, in order."""
        return process_set.ranks

    def _reduced(
        self,
        chunks: Iterable[torch.Tensor],
        like: Sequence[torch.Tensor],
        op: ReduceOp,
        scale: Scale,
        process_set: ProcessSet,
        sent: Sequence[int] = (),
    ) -> Iterator[torch.Tensor]:
        """Reduces a vector of the CPU chunk by chunk, in place; returns each when it is done. The
        chunks have the sizes of those in `like`."""
        ranks = self._reducing(process_set)
        number = self._exchanges[process_set.id]
        self._exchanges[process_set.id] += 1
        if len(ranks) == 1 or not like:
            yield from map(scale.apply_, chunks)
            return
        assert self._peers is not None
        lines = self._lines(ranks)
        position, counts = ranks.index(self._rank), list(map(len, like))
        exchange = Exchange(
            position, len(ranks), counts, like[0].dtype, op, scale, is_ahead=bool(sent)
        )
        try:
            yield from transfer(
                exchange,
                (process_set.id, number),
                chunks,
                lines,
                self._peers.clock,
                sent=sent,
                timeout_seconds=self._seconds,
                silence_seconds=self._silence_seconds,
            )
        except PeerFailedError as error:
            rank = ranks[error.position]
            raise self._cut_off((rank,), self._names.place(rank), error) from error

    def gather(
        self, mine: torch.Tensor, sizes: Sequence[int], process_set: ProcessSet
    ) -> list[torch.Tensor]:
        """Returns everybody's bytes; `sizes` says how many each position has."""
        longest = max(sizes)
        if not longest:
            return [mine.new_empty(0) for _ in sizes]
        padded = mine.new_zeros(longest)
        padded[: len(mine)] = mine
        found = [padded.new_empty(longest) for _ in sizes]
        options = AllgatherOptions()
        options.timeout = self._may_last(padded, len(sizes))
        group = self._groups[process_set.id]
        self._perform(process_set, lambda: group.allgather([found], [padded], options))
        return [each[:size] for each, size in zip(found, sizes, strict=True)]

    def broadcast(self, content: torch.Tensor, root: int, process_set: ProcessSet) -> None:
        """Bytes of the rank at position `root`, in place."""
        options = distributed.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        options.timeout = self._may_last(content, process_set.size)
        group = self._groups[process_set.id]
        self._perform(process_set, lambda: group.broadcast([content], options))

    def exchange(
        self,
        mine: torch.Tensor,
        send: Sequence[int],
        receive: Sequence[int],
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Sends `send[i]` bytes to position i, receives `receive[i]` from it."""
        received = mine.new_empty(sum(receive))
        group = self._groups[process_set.id]
        options = distributed.AllToAllOptions()
        longer = max(mine, received, key=len)
        options.timeout = self._may_last(longer, 2 * process_set.size)
        sizes = list(receive), list(send)
        self._perform(process_set, lambda: group.alltoall_base(received, mine, *sizes, options))
        return received

    def abort(self) -> None:
        """Ends operations that wait for others, from any thread."""
        self.is_aborted = True
        if self._peers is not None:
            self._peers.abort()
        for connections in list(self._connections.values()):
            connections.end()
        for group in list(self._groups.values()):
            group.abort()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()
        self._connections.clear()
        groups, self._groups = self._groups, {}
        if is_gpu(self.device):
            for group in groups.values():
                group.abort()  # `shutdown` would wait for the other ranks

    def _new_group(self, process_set: ProcessSet) -> Any:
        name = f"set{process_set.id}"
        if is_gpu(self.device):
            store, position = PrefixStore(name, self._store), process_set.position(self._rank)
            options = distributed.ProcessGroupNCCL.Options()
            set_timeout(options, _NCCL_TIMEOUT)
            return distributed.ProcessGroupNCCL(store, position, process_set.size, options)
        timeout = timedelta(seconds=self._connect_seconds)
        return self._new_gloo(name, process_set, timeout)[0]

    def message_group(
        self, process_set: ProcessSet, timeout: timedelta
    ) -> tuple[Any, GlooConnections]:
        """Returns another group of a set's ranks, for messages between them, and its
        connections."""
        return self._new_gloo(f"messages{process_set.id}", process_set, timeout)

    def _new_gloo(
        self, name: str, process_set: ProcessSet, timeout: timedelta
    ) -> tuple[Any, GlooConnections]:
        gloo: Any = distributed.ProcessGroupGloo
        size, is_lazy = process_set.size, process_set.size > MOST_CONNECTED
        try:
            options, connections = listening(self._address, timeout, is_lazy=is_lazy)
            self._connections[name] = connections
            store = PrefixStore(name, self._store)
            group = gloo(store, process_set.position(self._rank), size, options)
        except RuntimeError as error:
            others = [rank for rank in process_set.ranks if rank != self._rank]
            raise CollectiveError(
                f"rank {self._rank} could not connect to the other ranks of process set "
                f"{process_set.id}, {others}, from host {socket.gethostname()} within "
                f"{timeout.total_seconds():g} s: see whether all are alive and reach each other "
                "(LOCKSTITCH_IFNAME names the network interface). Between hosts Gloo listens at "
                "ports of the system's choice (net.ipv4.ip_local_port_range), which a firewall has "
                "to let through"
            ) from error
        if not is_lazy:
            self._learn_places(group, connections, process_set)
        return group, connections

    def _perform(self, process_set: ProcessSet, begin: Callable[[], Any]) -> None:
        """Begins an operation of Gloo or NCCL, and waits for its end. Ranks of a large set connect
        within it: these connections, too, end when the other host falls silent."""
        if is_gpu(self.device) or process_set.size <= MOST_CONNECTED:
            try:
                begin().wait()
            except RuntimeError as error:
                raise self._explained(error, process_set) from error
            return
        with silence_bounded(self._silence_seconds) as bound_now:
            work = begin()
            while not _ends_within(work, _LOOK_SECONDS):
                bound_now()
                if self.is_aborted:
                    # Gloo waits for a rank that lives. A thread that comes back from there to an
                    # interpreter that ends takes the whole process along (SIGABRT).
                    while not work.is_completed():
                        threading.Event().wait(_ABANDONED_LOOK_SECONDS)

    def _learn_places(
        self, group: Any, connections: GlooConnections, process_set: ProcessSet
    ) -> None:
        """Takes in at which address Gloo finds each rank of a set, and which host that is, for when
        nobody can be asked any more."""
        if self.is_aborted:
            raise CollectiveError(f"rank {self._rank} has ended its connections")
        mine = f"{self._address or ''} {connections.port} {self._names.here}".encode()
        mine = mine[:_PLACE_BYTES].ljust(_PLACE_BYTES)
        packed = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        found = [torch.empty_like(packed) for _ in process_set.ranks]
        options = AllgatherOptions()
        options.timeout = self._may_last(packed, process_set.size)
        self._perform(process_set, lambda: group.allgather([found], [packed], options))
        for rank, content in zip(process_set.ranks, found, strict=True):
            said = bytes(content.tolist()).decode(errors="replace")
            address, port, place = said.split(" ", 2)
            self._found_at[rank] = address, place.rstrip()
            connections.learn(address, int(port))

    def _explained(self, error: RuntimeError, process_set: ProcessSet) -> RuntimeError:
        """What Gloo says of an address, said of the ranks that it finds there."""
        broken = _BROKEN.search(str(error))
        if broken is None:
            return error
        others = [rank for rank in process_set.ranks if rank != self._rank]
        at = self._found_at  # nobody, where it breaks before they have told each other
        there = [rank for rank in others if rank in at and at[rank][0] == broken["address"]]
        if not there:
            return error
        return self._cut_off(there, at[there[0]][1], broken[0])

    def _cut_off(self, ranks: Sequence[int], place: str, why: object) -> CollectiveError:
        who = f"{self._names.in_words(ranks)}{f', on {place}' if place else ''}"
        is_silent = isinstance(why, PeerSilentError) or _SILENT in str(why)
        kind = RankLostError if is_silent else CollectiveError
        return kind(f"nothing goes to or comes from {who}, any more ({why})")

    def _may_last(self, content: torch.Tensor, count: int) -> timedelta:
        """Returns how long an operation with so many bytes from each of `count` ranks may take."""
        if is_gpu(self.device):
            return _NCCL_TIMEOUT
        return timedelta(seconds=self._seconds + count * content.nbytes / _BYTES_PER_SECOND)


def _ends_within(work: Any, seconds: float) -> bool:
    """Whether that work of torch's is over within so long. Raises what it has failed of."""
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()
    return True
