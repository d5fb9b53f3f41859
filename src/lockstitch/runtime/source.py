"""What the reader of a thread pool reads from: a connection, or a listener, with what it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Source(Protocol):
    """Something that the reader of a `ThreadPool` reads from."""

    def serve(self) -> None:
        """Handles what can be read now, and stops when `ThreadPool.run_…` says that this thread is
        the reader no more. Otherwise it has armed itself in the poller again, or is closed."""
        ...

    def leave(self) -> Callable[[], None] | None:
        """The reader goes: arm in the poller, or `ThreadPool.revisit` if something is left to
        handle. What may block is returned, and done when somebody else reads."""
        ...
