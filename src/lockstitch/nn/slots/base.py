"""What a slot is: a place that runs its part of the batch on a replica of the caller's module.

The caller runs the first part itself (slot 0). Each further part goes to a `Slot`, in requests that
are numbered, so that an answer nobody waits for any more disturbs nobody:

    start(request)            posts a forward pass and returns at once
    finish(number)            waits for its outputs
    start_backward(request)   posts the gradients of the outputs, and returns at once
    finish_backward(number)   waits for the gradients of inputs and leaves
    release(number)           forgets the graph of a forward pass: nobody can go back through it

A slot works through its requests one by one, in their order. What it computes with is a replica:
its parameters are the caller's own memory or copies that are kept equal, everything else is its own
and brought up to date by the `Changes` that come with a request (`module_changes.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lockstitch.devices.kinds import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from lockstitch.memory.waiting import WorkEstimate
    from lockstitch.modes import Modes


@dataclass(frozen=True)
class Changes:
    """What has changed in the caller's module since this slot was last told."""

    attributes: Sequence[tuple[int, str, Any]] = ()
    """The number of a submodule (in the order of `modules()`), an attribute's name and value."""
    others: Sequence[tuple[int, torch.Tensor | None]] = ()
    """The number of a buffer or a frozen parameter (`module_changes.places_of_others`), and a copy
    of it as it is now."""

    def __bool__(self) -> bool:
        return bool(self.attributes or self.others)

    @property
    def nbytes(self) -> int:
        """How large the copies are; of sparse ones, as if they were dense."""
        tensors = [each for _, each in self.others if each is not None]
        return sum([each.numel() * each.element_size() for each in tensors])


NO_CHANGES = Changes()

SHORT_SECONDS: Final = 200e-6
"""What takes less is not worth handing over to another thread or process."""


def is_short(work: WorkEstimate) -> bool:
    """Whether work of that kind is not worth handing over."""
    return work.is_below(SHORT_SECONDS)


class VjpOf(NamedTuple):
    """Names the pass whose gradients are to be computed so that they can be differentiated
    themselves."""

    number: int
    keeps_graph: bool


@dataclass(slots=True)
class Request:
    """One forward pass of one slot: through its module, or through the gradients of an earlier pass
    (`vjp_of`), where these are to be differentiated."""

    number: int
    skeleton: Any
    """Positional and named arguments, with a `lifting.Hole` in place of each tensor."""
    tensors: Sequence[torch.Tensor]
    """The tensors, detached."""
    wants_gradient: Sequence[bool]
    """Whether the gradient of each tensor will be asked for."""
    modes: Modes
    default_dtype: torch.dtype
    seed: int
    """The seed for the random numbers of this pass."""
    generator_state: int = 0
    """The caller's generator before the call (`generators.fingerprint`)."""
    changes: Changes = NO_CHANGES
    vjp_of: VjpOf | None = None
    """Then the positional arguments are the gradients of the outputs of that pass, as in a
    `BackwardRequest`, and what is returned are those of its inputs and the leaves, on a graph."""


@dataclass(slots=True)
class Outcome:
    """What a forward pass returned."""

    skeleton: Any
    tensors: Sequence[torch.Tensor]
    """Detached."""
    requires_grad: Sequence[bool]
    """Whether a gradient can be sent back through each tensor."""
    written: Sequence[int] = ()
    """The buffers and frozen parameters that the replica changed: they are no longer what the
    caller's module has."""


@dataclass(slots=True)
class BackwardRequest:
    """A backward pass through the graph of the forward pass `number`."""

    number: int
    gradients: Sequence[torch.Tensor | None]
    """One for each output that `requires_grad`."""
    keeps_graph: bool
    """Whether there may be another pass through this graph."""
    keeps_gradients: bool = False
    """Whether the leaves' gradients stay in the slot, for `collect` (`no_sync`)."""


@dataclass(slots=True)
class Gradients:
    """What came out of a backward pass; None where nothing depends on it."""

    inputs: Sequence[torch.Tensor | None] = ()
    """One for each tensor of the request that `wants_gradient`."""
    leaves: Sequence[torch.Tensor | None] = ()
    """One for each leaf of the blueprint; empty if they stay in the slot."""


@dataclass
class SlotStatistics:
    """What has gone to a slot so far."""

    passes: int = 0
    parameter_bytes: int = 0
    """How many bytes of parameters were copied to the slot."""
    other_bytes: int = 0
    """How many bytes of buffers and frozen parameters were copied to the slot."""


@dataclass(frozen=True)
class Blueprint:
    """What a slot makes its replica from, in the caller's process."""

    module: torch.nn.Module
    leaves: Sequence[torch.Tensor]
    """Its parameters, and buffers, that require gradients: `Gradients.leaves` has this order."""
    threads: int = 1
    """How many intra-op threads the slot may use."""
    slots: int = 2
    """How many there are to be, the caller's included."""
    device: torch.device = HOST
    """That of the caller's module."""


class Slot(ABC):
    """One slot other than the caller. All methods are called by the caller's process, under the
    lock of the pool that the slot belongs to; only `release` may be called from anywhere, at any
    time, and must neither block nor raise."""

    name: str
    """What errors call it: "slot 1 (process 4711)"."""
    statistics: SlotStatistics
    is_thread_safe = False
    """Whether passes backward may be asked for and waited for without the lock of the pool."""
    shares_parameters = True
    """Whether the replica's parameters lie where the caller's do, and must lie there."""

    @abstractmethod
    def start(self, request: Request) -> None:
        """Posts a forward pass and does not wait for it. Raises `SlotDiedError` if the slot is
        gone."""

    @abstractmethod
    def finish(self, number: int) -> Outcome:
        """Waits for the outputs of a forward pass, and raises what the module raised in it, or
        `SlotDiedError`."""

    def own_pass(
        self,
        state: int,  # noqa: ARG002 - for slots that do more
        leaves: Sequence[torch.Tensor],  # noqa: ARG002
        *,
        fills_unused: bool,  # noqa: ARG002
    ) -> OwnPass | None:
        """The next forward pass on the caller's own graph, where that takes less than handing it
        over; None where it is to be requested. The slot has nothing to be told. `state` as in a
        request; `leaves` of the caller's module want gradients, of which those that the pass does
        not use get zeros if `fills_unused`."""
        return None

    @abstractmethod
    def start_backward(self, request: BackwardRequest) -> None:
        """Posts a backward pass; like `start`."""

    @abstractmethod
    def finish_backward(self, number: int) -> Gradients:
        """Waits for the gradients of the backward pass through `number`; like `finish`."""

    @abstractmethod
    def collect(self) -> Sequence[torch.Tensor | None]:
        """The leaves' gradients that have stayed in the slot, summed, which it then forgets;
        empty if there are none."""

    @abstractmethod
    def release(self, number: int) -> None:
        """Forgets the graph of the forward pass `number`; harmless if there is none."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the slot can take requests; one that cannot is replaced at the next call."""

    @abstractmethod
    def close(self) -> None:
        """Ends the slot and waits for its end; what is under way is given up. Harmless when
        repeated."""


OwnPass: TypeAlias = "Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Sequence[int]]]"
"""Calls the slot's replica, after the caller's own part: what it returned, and what it has written,
as in an outcome."""

SlotFactory: TypeAlias = "Callable[[int, Blueprint], Slot]"
"""Makes the slot of a number (1 is the first beside the caller's)."""
