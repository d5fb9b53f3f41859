"""Several ranks of one real backend in this process, each in a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.distributed import HashStore

from lockstitch.collectives import LocalSessions, Session, SessionOptions, open_session
from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.collectives.c10d.peer_connections import PeerConnections
from lockstitch.transport import TcpTransport

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

BACKENDS = ["memory", "shared_memory", "c10d", "hierarchical"]
BY_ORDERS = ["c10d by orders", "hierarchical by orders"]
"""Where small tensors, too, go by process groups, and not with the messages."""
BY_SPEAKERS = "hierarchical by speakers"
"""Where a rank of each host speaks for the others, as in a large world."""


class Ranks:
    """A context manager: `size` sessions; `hierarchical` pretends that there are two hosts."""

    def __init__(self, size: int, backend: str, store: Any = None, **options: Any) -> None:
        self.size = size
        self.backend, _, way = backend.partition(" by ")
        self.store = store or HashStore()
        ways = {"orders": {"riding_bytes": 0}, "speakers": {"speaker_fan_in": 2}}
        self._options = {**ways.get(way, {}), **options}
        self.sessions: list[Session] = []

    def __enter__(self) -> Ranks:
        if self.backend == "memory":
            self.sessions = list(LocalSessions(self.size, **self._options))
        else:
            self.sessions = in_threads(self.size, self._open)
        return self

    def __exit__(self, *_error: object) -> None:
        for session in self.sessions:
            session.shutdown()

    def __getitem__(self, rank: int) -> Session:
        return self.sessions[rank]

    def run(self, function: Callable[[Session], T]) -> list[T]:
        """Runs `function` for all ranks at once; their values, or the first error."""
        return in_threads(self.size, lambda rank: function(self.sessions[rank]))

    def errors(self, function: Callable[[Session], object]) -> list[BaseException | None]:
        """Runs `function` for all ranks at once; what each raised."""

        def attempt(rank: int) -> BaseException | None:
            try:
                function(self.sessions[rank])
            except Exception as error:  # noqa: BLE001 - returned
                return error
            return None

        return in_threads(self.size, attempt)

    def _open(self, rank: int) -> Session:
        host = f"host {rank * 2 // self.size}" if self.backend == "hierarchical" else None
        options = SessionOptions(backend=self.backend, host=host, **self._options)  # type: ignore[arg-type]
        return open_session(rank, self.size, self.store, options)


def peers_of(rank: int, store: Any) -> PeerConnections:
    """The connections of a rank that meets the others in a store."""
    return PeerConnections(rank, store, TcpTransport(), LinkOptions.of("a word", None, 60.0))


def in_threads(size: int, function: Callable[[int], T]) -> list[T]:
    """`function(rank)` for each rank at once; values in the order of ranks, or the first error."""
    values: list[Any] = [None] * size
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            values[rank] = function(rank)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"test rank {rank}", daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "ranks hang"
    if errors:
        raise errors[min(errors)]
    return values


def sample(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers that differ between ranks, small enough that sums and products are exact."""
    generator = torch.Generator().manual_seed(rank)
    whole = torch.randint(0, 3, shape, generator=generator)
    return whole.to(dtype)
