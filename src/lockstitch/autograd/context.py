"""A context: what one worker remembers of one forward and its backward passes.

While a context is active, every message that carries tensors wanting gradients leaves a record on
both ends: a *send* on one worker, a *receive* on the other. Backward passes follow these records
and put the gradients of leaf tensors here, never into `.grad`. A context lives on every worker that
it touched, under the same id, until it is released on all of them.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch
from torch.autograd.graph import GradientEdge

from lockstitch.autograd.graph import Entry
from lockstitch.autograd.replicas import Replicas
from lockstitch.autograd.selection import Selection
from lockstitch.torch_internals.owners import is_sole_owner
from lockstitch.torch_internals.tensors import add_many, indices_of, values_of

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn.parallel import DistributedDataParallel

    from lockstitch.autograd.conductor import PassOptions
    from lockstitch.autograd.termination import PassStatus
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.torch_internals.autograd import Node


_ORDINARY: Final = {torch.Tensor}
_STRIDED: Final = {torch.strided}
_has_history: Final = attrgetter("requires_grad")
_layout_of: Final = attrgetter("layout")


class Send(NamedTuple):
    """Tensors that left this worker: for each, the private alias node above its own node.

    The alias nodes keep the graph below them alive, but no tensor. `order` counts the sends of a
    context.
    """

    message: GlobalId
    destination: WorkerId
    order: int
    aliases: tuple[Node, ...]
    devices: tuple[torch.device, ...] | None = None
    """Where the tensors are; None: all are on the host."""

    def entry(self) -> Entry:
        """Returns where the gradients of this send enter the graph."""
        edges = tuple([GradientEdge(*alias.next_functions[0]) for alias in self.aliases])
        return Entry(self.message, edges, self.aliases, self.order, self.devices)


class Pass(Protocol):
    """This worker's part of a backward pass, as far as a context must know it; a `BackwardPass`."""

    options: PassOptions

    def fail(self, error: BaseException, *, may_be_over: bool = False) -> bool:
        """Ends the pass in an error; returns False where it had ended before. `may_be_over`: if
        nothing waits, that is no failure."""
        ...

    def abandon(self, error: BaseException) -> None:
        """Notes that the pass may never hear the rest of what it waits for."""
        ...

    def status(self) -> PassStatus:
        """Returns what the pass has done here, and what it waits for."""
        ...

    def arrived(self) -> list[GlobalId]:
        """Returns for which stitches gradients, or word that there are none, have come."""
        ...


class DistAutogradContext:
    """One worker's part of a context; made by `AutogradService`, never by users."""

    def __init__(self, identifier: int, home: object) -> None:
        self.id = identifier
        self.home = home
        self.is_released = False
        self.block: weakref.ref[object] | None = None
        """What lives until the context is left, if it was opened by a block of a program."""
        self.receives: dict[GlobalId, Node] = {}
        self.passes: dict[WorkerId, Pass] = {}
        """The latest backward pass of each initiator."""
        self.turn = threading.Lock()
        """Held by the initiator for a whole pass: passes of one context follow one another."""
        self.selections: dict[WorkerId, Selection] = {}
        """What the latest pass of each initiator wants here, where it does not want all."""
        self.runs = PassGate()
        self.failed_passes = 0
        self.has_derivatives = False
        """Whether a pass that this worker has conducted has left graphs of gradients."""
        self._replicas: Replicas | None = None
        self._sends: dict[GlobalId, Send] = {}
        self._receivers: set[WorkerId] = set()
        self._workers: set[WorkerId] = set()
        self._known_to: dict[WorkerId, set[WorkerId]] = {}
        self._records = threading.Lock()
        self._gradients: dict[torch.Tensor, torch.Tensor] = {}
        self._adding = threading.Lock()

    def __repr__(self) -> str:
        state = "released" if self.is_released else f"{len(self._workers)} other workers"
        failed = f" · {self.failed_passes} failed passes" if self.failed_passes else ""
        return (
            f"<DistAutogradContext {self.id} · {state} · {len(self._sends)} sends · "
            f"{len(self.receives)} receives · {len(self._gradients)} gradients{failed}>"
        )

    # ------------------------------------------------------------ records

    def add_send(
        self,
        message: GlobalId,
        to: WorkerId,
        aliases: tuple[Node, ...],
        devices: tuple[torch.device, ...] | None = None,
    ) -> None:
        """Records that tensors leave as `message`."""
        with self._records:
            if not self.is_released:
                order = len(self._sends) + 1
                self._sends[message] = Send(message, to, order, aliases, devices)

    def add_receive(self, message: GlobalId, node: Node) -> None:
        """Records the node at which the graph of the tensors received as `message` begins."""
        with self._records:
            if not self.is_released:
                self.receives[message] = node

    def add_pass(self, initiator: WorkerId, backward_pass: Pass) -> bool:
        """Records the latest pass of that initiator, which `release` will fail; False when the
        context is released already."""
        with self._records:
            if self.is_released:
                return False
            self.passes[initiator] = backward_pass
            return True

    def select(self, backward_pass: GlobalId, edges: Sequence[GradientEdge]) -> Selection:
        """Records that `backward_pass`, which has not begun yet, wants the gradients at `edges`."""
        selection = Selection(backward_pass, edges)
        with self._records:
            if not self.is_released:
                self.selections[backward_pass.worker] = selection
        return selection

    def selection_of(self, backward_pass: GlobalId) -> Selection:
        """What that pass wants here; nothing, if nobody has said so."""
        selection = self.selections.get(backward_pass.worker)
        if selection is None or selection.backward_pass != backward_pass:
            return Selection(backward_pass, ())
        return selection

    @property
    def sends(self) -> list[Send]:
        """The sends so far, oldest first."""
        with self._records:
            return list(self._sends.values())

    # ------------------------------------------------------------ workers

    @property
    def receivers(self) -> frozenset[WorkerId]:
        """The workers that this one sent a message of the context to."""
        with self._records:
            return frozenset(self._receivers)

    @property
    def workers(self) -> frozenset[WorkerId]:
        """All other workers known to take part in the context."""
        with self._records:
            return frozenset(self._workers)

    def involve(self, to: WorkerId, own: WorkerId) -> tuple[WorkerId, ...]:
        """Notes that a message goes to `to`; returns the workers that it should be told of."""
        if to in self._receivers and len(self._known_to[to]) > len(self._workers):
            return ()  # it knows them all, and us: the fast path, without the lock
        with self._records:
            known = self._known_to.setdefault(to, {to, own})
            if to != own:
                self._workers.add(to)
            news = tuple(self._workers - known)
            known.update(news)
            self._receivers.add(to)
        return news

    def learn(self, sender: WorkerId, workers: Sequence[WorkerId], own: WorkerId) -> None:
        """Notes that a message came from `sender`, who knows of `workers`."""
        if not workers and sender in self._workers:
            return
        with self._records:
            known = self._known_to.setdefault(sender, {sender, own})
            for worker in (sender, *workers):
                known.add(worker)
                if worker != own:
                    self._workers.add(worker)

    # ------------------------------------------------------------ gradients

    @property
    def gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        """Leaf tensor → gradient; the dictionary is a copy, the tensors are not."""
        with self._adding:
            return dict(self._gradients)

    def set_gradients(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Has these in the place of what it had for their leaves, once others have had a part in
        them."""
        with self._adding:
            if not self.is_released:
                self._gradients.update(gradients)

    def add_gradients(
        self,
        leaves: Sequence[GradientEdge],
        gradients: list[torch.Tensor | None],
        *,
        keep_history: bool = False,
    ) -> None:
        """Adds what arrived at `leaves`, with its history if that is to be kept.

        A gradient that is kept shares memory with no other: it is stolen where the list `gradients`
        alone holds it, and copied otherwise. (So nothing here may name it before that is known.)
        """
        with self._adding:
            if self._replicas is not None:
                self._replicas.note_gradients(
                    leaf.node.variable  # type: ignore[attr-defined]
                    for leaf, gradient in zip(leaves, gradients, strict=False)
                    if gradient is not None
                )
            if self._add_all(leaves, gradients):
                return
            for index, leaf in enumerate(leaves):
                if gradients[index] is None:
                    continue
                variable: torch.Tensor = leaf.node.variable  # type: ignore[attr-defined]
                if variable.requires_grad and not self.is_released:
                    self._add(variable, gradients, index, keep_history=keep_history)

    def _add_all(
        self, leaves: Sequence[GradientEdge], gradients: Sequence[torch.Tensor | None]
    ) -> bool:
        """Adds all at once where each has one before it, and all are ordinary; False: does
        nothing."""
        if not self._gradients or self.is_released:
            return False
        variables: list[torch.Tensor] = []
        added: list[torch.Tensor] = []
        for leaf, gradient in zip(leaves, gradients, strict=False):
            if gradient is not None:
                variables.append(leaf.node.variable)  # type: ignore[attr-defined]
                added.append(gradient)
        stored: list[Any] = [*map(self._gradients.get, variables)]
        if not _are_ordinary([*stored, *added]) or not all(map(_has_history, variables)):
            return False
        add_many(stored, added)
        return True

    def sums_at(self, leaves: Sequence[GradientEdge]) -> list[torch.Tensor]:
        """The gradients that leaves have so far, for `add_to`; none, if for some that is not all
        there is to do."""
        variables = [leaf.node.variable for leaf in leaves]  # type: ignore[attr-defined]
        with self._adding:
            sums: list[Any] = [*map(self._gradients.get, variables)]
            if self._replicas is not None or not all(map(_has_history, variables)):
                return []
        return sums if _are_ordinary(sums) else []

    def add_to(self, total: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adds a gradient to one of `sums_at`."""
        with self._adding:
            if not self.is_released:
                total.add_(gradient)

    def move_gradients(self, to: DistAutogradContext, leaves: Sequence[torch.Tensor]) -> None:
        """Adds the gradients of these leaves to those of another context, and has none of them
        afterwards."""
        with self._adding:
            taken = {each: self._gradients.pop(each, None) for each in leaves}
        found: list[torch.Tensor | None] = [*taken.values()]
        with to._adding:
            for index, leaf in enumerate(taken):
                taken[leaf] = None
                if found[index] is not None and not to.is_released:
                    to._add(leaf, found, index)

    def _add(
        self,
        variable: torch.Tensor,
        gradients: list[torch.Tensor | None],
        index: int,
        *,
        keep_history: bool = False,
    ) -> None:
        stored = self._gradients.get(variable)
        is_ours = stored is None and is_sole_owner(gradients, index)
        given = gradients[index]
        assert given is not None
        has_history = keep_history and given.requires_grad
        gradient = given
        if not has_history and (stored is None or given.requires_grad):
            gradient = given.detach()  # lets go of a view's base too
        if has_history or (stored is not None and stored.requires_grad):
            self._gradients[variable] = _joined(gradient, stored, variable)
        elif stored is None:
            steal = is_ours and _is_laid_out_like(gradient, variable)
            self._gradients[variable] = gradient if steal else _copy(gradient, variable)
        elif stored.layout is torch.strided:
            stored.add_(gradient)
        else:  # sparse with sparse stays sparse; torch adds sparse to dense, not dense to sparse
            self._gradients[variable] = gradient + stored

    # ------------------------------------------------------------ replicas

    @property
    def has_replicas(self) -> bool:
        """Whether modules have run here whose gradients other ranks have a part of."""
        return self._replicas is not None

    def note_replica(
        self, module: DistributedDataParallel, parameters: list[torch.nn.Parameter]
    ) -> None:
        """`module` has run forward in this context; see `replicas`."""
        with self._adding:
            if self._replicas is None:
                self._replicas = Replicas()
            self._replicas.note(module, parameters)

    def reduce_replicas(self) -> None:
        """Has the modules that were noted reduce their gradients. Waits for other ranks."""
        if self._replicas is not None and not self.is_released:
            self._replicas.reduce(self._gradients)

    # ------------------------------------------------------------ the end

    def release(self, error: BaseException) -> None:
        """Forgets everything; what still waits for a backward pass fails with `error`."""
        with self._records:
            self.is_released = True
            passes = list(self.passes.values())
        for each in passes:
            each.fail(error, may_be_over=True)
        # What is dropped goes after the locks: a graph that dies may run code of its users.
        with self._records, self._adding:
            dropped = (self._sends, self.receives, self.passes, self._gradients, self._replicas)
            self._replicas = None
            self._sends, self.receives, self.passes, self._gradients = {}, {}, {}, {}
            selections, self.selections = self.selections, {}
        del dropped, selections


def _are_ordinary(gradients: list[Any]) -> bool:
    """Whether all are there, and are tensors of numbers in order, without a history."""
    return (
        {*map(type, gradients)} == _ORDINARY
        and not any(map(_has_history, gradients))
        and {*map(_layout_of, gradients)} == _STRIDED
    )


@torch.enable_grad()
def _joined(
    gradient: torch.Tensor, stored: torch.Tensor | None, variable: torch.Tensor
) -> torch.Tensor:
    """A gradient and what was there before, one of them with a history: a new tensor, since what
    came of either may have been kept for a further pass."""
    if stored is None:
        return _copy(gradient, variable)
    is_dense = stored.layout is torch.strided
    return stored + gradient if is_dense else gradient + stored  # never sparse with dense added


def _is_laid_out_like(gradient: torch.Tensor, variable: torch.Tensor) -> bool:
    """Returns whether a gradient may be kept as it is: dense in memory and without overlaps."""
    if gradient.layout is torch.strided:
        if gradient.untyped_storage().nbytes() != gradient.nbytes:
            return False  # a part of something larger, which would have to be kept
        return gradient.is_contiguous() or (
            gradient.stride() == variable.stride() and 0 not in gradient.stride()
        )
    if gradient.layout is torch.sparse_coo:
        return indices_of(gradient).is_contiguous() and values_of(gradient).is_contiguous()
    return False


def _copy(gradient: torch.Tensor, variable: torch.Tensor) -> torch.Tensor:
    if gradient.layout is not torch.strided or variable.layout is not torch.strided:
        return gradient.clone()
    if 0 in variable.stride():
        return gradient.clone(memory_format=torch.contiguous_format)
    return torch.empty_like(variable, requires_grad=False).copy_(gradient)


class PassGate:
    """A gate that lets the runs of one backward pass of a context through together, and those of
    the next one later.

    A receive node knows only one running pass. Passes follow one another, but a pass that failed
    may leave a run behind which has not noticed yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: object = None
        self._count = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_occupied(self) -> bool:
        """Whether anything runs now."""
        return self._count > 0

    def enter(self, visitor: object, later: Callable[[], None]) -> bool:
        """Lets a run of the pass `visitor` in; False: `later` is kept, for `leave` to hand out."""
        with self._lock:
            if self._count and self._inside is not visitor:
                self._waiting.append(later)
                return False
            self._inside = visitor
            self._count += 1
            return True

    def leave(self) -> list[Callable[[], None]]:
        """A run has ended. Returns what may try to enter now."""
        with self._lock:
            self._count -= 1
            if self._count:
                return []
            self._inside = None
            waiting, self._waiting = self._waiting, []
            return waiting


CURRENT: Final[ContextVar[DistAutogradContext | None]] = ContextVar(
    "lockstitch_context", default=None
)
"""The context that this thread is inside of, whichever worker it belongs to."""


def current_context(home: object) -> DistAutogradContext | None:
    """The context of `home` that this thread is inside of, if any."""
    context = CURRENT.get()
    return context if context is not None and context.home is home else None


def context_of_this_thread() -> DistAutogradContext | None:
    """The context that this thread is inside of, whichever worker it belongs to."""
    return CURRENT.get()


def set_current_context(context: DistAutogradContext | None) -> DistAutogradContext | None:
    """Makes `context` this thread's; returns what was before."""
    before = CURRENT.get()
    CURRENT.set(context)
    return before
