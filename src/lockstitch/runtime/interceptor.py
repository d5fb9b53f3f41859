"""The seam through which a higher floor sees every message that carries user values.

Distributed autograd is the one that plugs in: it sews a *stitch* onto each message whose tensors
want gradients, and runs user functions under the caller's context. The runtime knows no more of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from lockstitch.ids import WorkerId
    from lockstitch.wire.messages import Stitch


class Interceptor(Protocol):
    """What the agent calls on the route of a message."""

    @property
    def is_active(self) -> Callable[[], object]:
        """Says whether the current thread may be inside a context: the one question on the fast
        path, best answered without Python code."""
        ...

    def is_recording(self) -> bool:
        """Whether `outgoing`, called on this thread now, would record tensors that require grad."""
        ...

    def outgoing(self, to: WorkerId, items: Sequence[Any]) -> Stitch | None:
        """Called on the sending thread, inside the context, just before a message leaves.
        Records the send; returns the stitch to travel with it (None outside a context)."""
        ...

    def incoming(
        self, sender: WorkerId, stitch: Stitch, items: list[Any], *, records: bool = True
    ) -> None:
        """Called on the receiving thread before the payload is unpickled. Replaces in `items` the
        tensors named by the stitch with ones whose graph begins at the receive, whatever the modes
        of the thread, unless nothing is to be recorded."""
        ...

    def unstitched(self, tensor: Any, origin: str) -> None:
        """A tensor that requires grad has arrived outside any context; `origin` says by which call,
        as in "the tensor … "."""
        ...

    def scope(self, stitch: Stitch) -> AbstractContextManager[None]:
        """Runs the code within under the message's context."""
        ...
