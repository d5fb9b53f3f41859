"""The seam below a session: whatever negotiates with the other ranks and moves the tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    import torch

    from lockstitch.collectives.c10d.gloo_connections import GlooConnections
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.process_sets import ProcessSet


class Backend(Protocol):
    """One rank's end of what negotiates with the other ranks and moves the tensors. All methods may
    be called from several threads."""

    name: str

    @property
    def takes_devices(self) -> bool:
        """Whether tensors may be on any device; else it is given tensors in host memory only."""
        ...

    @property
    def opens_sets_alone(self) -> bool:
        """Whether `open_set` of one member does not wait for the others."""
        ...

    @property
    def negotiation_bytes(self) -> int:
        """What this rank has told others so far, tensors not counted."""
        ...

    def submit(self, handle: Handle[Any]) -> None:
        """Begins the operation and does what can be done at once: first of all says so
        (`Handle.is_begun`). Waits for no other rank, unless there is no room for more operations in
        flight."""
        ...

    def advance(self) -> None:
        """Does what can be done at once for all that is under way."""
        ...

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        """Returns when the handle is done, or when `gives_up`, which is asked about once a second,
        says so. Ends at Ctrl-C."""
        ...

    def look_after(self) -> None:
        """Nobody waits for what is under way: this rank's part in it is done all the same."""
        ...

    def rest(self, seconds: float) -> None:
        """Does nothing for so long, or until another rank has news. Sees who dies meanwhile."""
        ...

    def is_wanted(self) -> bool:
        """Returns whether other ranks wait for an operation that this one has not submitted, as far
        as is known."""
        ...

    def missing(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        """The ranks that have not submitted an operation which this one has, or, of a join, that
        have not joined; None where that is not found out. May ask and wait for a moment."""
        ...

    def wanted(self) -> list[tuple[str, tuple[int, ...]]]:
        """The names of operations that other ranks have submitted and this one has not, and by whom
        they are; without a name where that is not known here. May ask and wait for a moment."""
        ...

    def resident(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor in the memory that is best to reduce from."""
        ...

    def is_resident(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor lies in that memory; True where all memory is as good."""
        ...

    def open_set(self, process_set: ProcessSet) -> None:
        """A new process set is known on all ranks; this one may be no member."""
        ...

    def close_set(self, process_set: ProcessSet) -> None:
        """A process set is no longer used."""
        ...

    def close(self) -> None:
        """Says goodbye and gives everything back; harmless when repeated."""
        ...


class BetweenHosts(Backend, Protocol):
    """One whose ranks may be on several hosts."""

    def message_group(self, timeout: timedelta) -> tuple[Any, GlooConnections]:
        """See `Session.message_group`."""
        ...
