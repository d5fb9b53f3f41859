"""What one run of a component sends: gradients as its receives are reached, and what is left over.

A gradient leaves at once, while the run goes on. Only the last one may be held until the end of the
run: then it can carry the run's report, and the initiator need not be told separately.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from lockstitch.devices.kinds import is_on_host
from lockstitch.devices.streams import wait_for_current
from lockstitch.wire.encodings import NOTHING
from lockstitch.wire.messages import Gradient, Payload
from lockstitch.wire.subclasses import is_kept_in_memory
from lockstitch.wire.tensors import is_spread

if TYPE_CHECKING:
    from lockstitch.autograd.conductor import PassOptions
    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.graph import Component, Gradients
    from lockstitch.autograd.stitch import Receive
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.wire.messages import Stitch

Sew = Callable[["DistAutogradContext", "WorkerId", "Gradients"], "Stitch"]
"""Records that gradients with a history leave for a worker; `Stitcher.sew`."""

_MOST_COMPACTED: Final = 1024


class Emission:
    """The sink of one run (see `stitch.GradientSink`); `post(receive, gradients)` sends."""

    __slots__ = ("_fired", "_held", "_hold_last", "_lock", "_post", "_receives", "emitted")

    def __init__(
        self,
        component: Component,
        post: Callable[[Receive, Gradients | None], None],
        hold_last: bool,
    ) -> None:
        self._receives: list[Receive] = [node.receive for node in component.receives]
        self._post = post
        self._hold_last = hold_last
        self._lock = threading.Lock()
        self._fired: set[GlobalId] = set()
        self._held: list[tuple[Receive, Gradients | None]] = []
        self.emitted: list[GlobalId] = []
        """What has been sent."""

    def emit(self, receive: Receive, gradients: Gradients) -> None:
        """Called by the receive's node, on the engine's thread."""
        some = None
        some_device: torch.device | None = None
        for gradient in gradients:
            if gradient is not None:
                some = gradients
                if not is_on_host(gradient):
                    some_device = gradient.device
        with self._lock:
            self._fired.add(receive.message)
            if self._hold_last and len(self._fired) == len(self._receives):
                if some_device is not None:  # another thread sends it, on another stream
                    wait_for_current([some_device])
                self._held.append((receive, some))
                return
            self.emitted.append(receive.message)
        self._post(receive, some)

    def remaining(self) -> list[tuple[Receive, Gradients | None]]:
        """Returns what is to be sent at the end: null tokens of receives that no gradient reached,
        so that nobody waits for them, and what was held."""
        if len(self._fired) == len(self._receives):
            return self._held
        nulls: list[tuple[Receive, Gradients | None]] = [
            (receive, None) for receive in self._receives if receive.message not in self._fired
        ]
        return nulls + self._held


class GradientComposer:
    """Makes the messages of gradients of one pass."""

    __slots__ = ("_context", "_options", "_sew")

    def __init__(self, context: DistAutogradContext, options: PassOptions, sew: Sew) -> None:
        self._context = context
        self._options = options
        self._sew = sew

    def compose(
        self,
        receive: Receive,
        gradients: Gradients | None,
        report: tuple[tuple[GlobalId, ...], tuple[GlobalId, ...]],
        listens: bool,
    ) -> Gradient:
        """What is sent to where `receive` came from: gradients, stitched if the pass creates a
        graph, or a null token; with a report, of what was emitted and what consumed."""
        options, message, stitch = self._options, receive.message, None
        if gradients is not None and options.create_graph:
            with torch.enable_grad():
                gradients = tuple([compact(gradient) for gradient in gradients])
                stitch = self._sew(self._context, message.worker, gradients)
        elif gradients is not None:
            gradients = tuple([compact(gradient) for gradient in gradients])
        return Gradient(
            self._context.id,
            options.id,
            options.flags,
            listens,
            message,
            *report,
            stitch,
            Payload(NOTHING, b"", gradients or ()),
        )


def compact(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A small gradient crosses quicker if it is laid out densely; that of a sum is not. A slice of
    one that lies between others would be copied anyway, once all have been looked at. Raises
    `TypeError` for one that has no memory to be sent."""
    if gradient is not None and type(gradient) is not torch.Tensor:
        gradient = _plain(gradient)
    if gradient is None or gradient.layout is not torch.strided:
        return gradient
    if gradient.numel() > _MOST_COMPACTED and not is_spread(gradient):
        return gradient
    return gradient.contiguous()


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    cls = type(gradient)
    if not is_kept_in_memory(cls):
        raise TypeError(
            f"the gradient of a tensor that was received over RPC is a {cls.__module__}."
            f"{cls.__qualname__}, and what was sent is a plain tensor: a gradient of that type "
            "cannot cross"
        )
    return gradient.as_subclass(torch.Tensor)
