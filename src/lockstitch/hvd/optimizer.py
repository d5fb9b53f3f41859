"""`DistributedOptimizer`: an optimizer whose gradients are those of all ranks.

The optimizer stays the object that it is and keeps its state, its schedulers and its class's name;
it becomes one of a class made for it, which derives from its own:

    torch.optim.SGD ◀── SGD (made here) ──▶ step, zero_grad, synchronize, … of
                                               `_DistributedOptimizer`

Copies and pickles of it are optimizers of its own class: they belong to other parameters.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch import autograd
from lockstitch.autograd.api import service
from lockstitch.collectives import ReduceOp, Reduction
from lockstitch.hvd.adasum import Combined
from lockstitch.hvd.compression import Compression, PowerSGD
from lockstitch.hvd.constants import Average
from lockstitch.hvd.exchange import ReducerOptions
from lockstitch.hvd.groups import buckets_of
from lockstitch.hvd.job import PROCESS, current_session
from lockstitch.hvd.process_sets import ProcessSet, global_process_set
from lockstitch.hvd.reducer import GradientReducer
from lockstitch.hvd.synchronous import allreduce
from lockstitch.torch_internals.optimizers import mark_step, note_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lockstitch.hvd.compression import Compressor


_WITHOUT_SKIPPING: Final = (
    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
    "Horovod would reduce all gradients a second time"
)
_OWN_CLASS: Final = "_own_class"


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that an optimizer gains. Programs import the class, under this name, to say what
    they take."""

    _reducer: GradientReducer
    _compression: type[Compressor] | Compressor
    _skips: bool
    _was_synchronized: bool
    op: ReduceOp
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    """As they were given, to look at."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Waits for the reduced gradients, then steps. After `synchronize` it does not reduce again
        what has not changed through a backward pass.

        With a closure, the gradients of each evaluation are reduced, and the loss that the
        optimizer sees and returns is the average over the ranks: so all decide alike.

        With the id of a `lockstitch.autograd` context, its gradients on this rank are reduced, in
        the context, and taken; `.grad` is left alone.

        The closure, or the id, is the first argument; all others are those of the optimizer's own
        class.
        """
        note_step(self)
        closure = args[0] if args else kwargs.get("closure")
        if isinstance(closure, int):
            return self._step_in(closure)
        if closure is None:
            if not self._skips:
                if self._was_synchronized:
                    warnings.warn(_WITHOUT_SKIPPING, stacklevel=2)
                if not self._reducer.is_finished(self._parameters()):
                    self._reducer.finish(self._parameters())
            result = super().step(*args, **kwargs)
        else:
            if self._reducer.is_under_way:
                self._reducer.finish(self._parameters())
            if args:
                args = (lambda: self._evaluate(closure), *args[1:])
            else:
                kwargs["closure"] = lambda: self._evaluate(closure)
            result = super().step(*args, **kwargs)
        self._was_synchronized = False
        self._reducer.reset()
        return result

    # The class below has hooks and calls them: here they would fire a second time. And `step` says
    # by itself what schedulers look for, so they need not wrap it.
    step.hooked = True  # type: ignore[attr-defined]
    mark_step(step)

    def _step_in(self, context_id: int) -> Any:
        if self._was_synchronized and not self._skips:
            warnings.warn(_WITHOUT_SKIPPING, stacklevel=3)
        self._was_synchronized = False
        with self._with_gradients_of(autograd.get_gradients(context_id)) as parameters:
            if not self._skips:
                self._reducer.finish(parameters)
            return super().step()

    @contextlib.contextmanager
    def _with_gradients_of(
        self, gradients: Mapping[torch.Tensor, torch.Tensor]
    ) -> Iterator[list[torch.Tensor]]:
        """Within, the parameters have these gradients in the place of their own."""
        parameters = self._parameters()
        before = [parameter.grad for parameter in parameters]
        self._reducer.reset()
        try:
            for parameter in parameters:
                parameter.grad = gradients.get(parameter)
            yield parameters
        finally:
            self._reducer.reset()
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._reducer.finish(self._parameters())
        if not self._reducer.is_needed:
            return loss
        value = torch.as_tensor(loss, dtype=None if torch.is_tensor(loss) else torch.float64)
        average = allreduce(value.detach(), op=Average, process_set=self.process_set)
        return average if torch.is_tensor(loss) else average.item()

    def synchronize(self, context_id: int | None = None) -> None:
        """Waits until the gradients of all parameters are reduced: to clip or unscale them before
        `step`, which belongs into `skip_synchronize` then (otherwise it warns: what is reduced is
        not reduced again, but Horovod would).

        With the id of a `lockstitch.autograd` context, the gradients that it has on this rank are
        reduced, and stay in it: for `lockstitch.optim.clip_grad_norm_`, before `step(context_id)`,
        which would reduce them again outside of `skip_synchronize`.
        """
        if context_id is None:
            self._reducer.finish(self._parameters())
        else:
            context = service().find_context(context_id)
            with self._with_gradients_of(context.gradients) as parameters:
                self._reducer.finish(parameters)
                found = [(each, each.grad) for each in parameters if each.grad is not None]
            context.set_gradients(dict(found))
        self._was_synchronized = True

    def without_gradient(self) -> list[str]:
        """The names of the parameters that got no gradient on this rank before the last step (zeros
        were reduced in their place): those that the loss does not depend on."""
        return list(self._reducer.without_gradient)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets `step` take the gradients as they are, within the block."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets backward passes only accumulate gradients on this rank, within the block. The next
        pass outside, or the step, reduces their sum."""
        before, self._reducer.is_paused = self._reducer.is_paused, True
        try:
            yield
        finally:
            self._reducer.is_paused = before

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Does what the optimizer's own class does, with its arguments. Raises `AssertionError`
        between `backward` and `step` or `synchronize`, while gradients are being reduced."""
        if self._reducer.is_under_way:
            raise AssertionError(
                "zero_grad() was called after backward() but before step() or synchronize(), while "
                "gradients are being reduced"
            )
        self._was_synchronized = False
        self._reducer.reset()
        super().zero_grad(*args, **kwargs)

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that add to a gradient before it is reduced."""
        return self._reducer.passes

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Programs of the original look here for the names under which gradients are reduced."""
        return self._reducer.names

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes are accumulated from now on before a gradient is
        reduced."""
        self._reducer.passes = _checked_passes(passes)
        self._reducer.reset()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the state of the optimizer, and what a compression keeps between steps on this
        rank."""
        state = super().state_dict(*args, **kwargs)
        if isinstance(self._compression, PowerSGD):
            state["compression"] = self._compression.state_dict(self._parameters())
        return state

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> None:
        """Takes over a state; counting backward passes begins anew."""
        self._reducer.reset()
        super().load_state_dict(state_dict, *args, **kwargs)
        if isinstance(self._compression, PowerSGD) and "compression" in state_dict:
            self._compression.load_state_dict(self._parameters(), state_dict["compression"])


def DistributedOptimizer(  # noqa: N802 - a class to its users, with the original's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes `optimizer` step with the gradients of all ranks, and returns it.

    `named_parameters`: `model.named_parameters()`, the same on all ranks; without it parameters go
    by their places. `compression`: what gradients travel as, e.g. `hvd.Compression.fp16`. `op`:
    `hvd.Average` (the default), `hvd.Sum`, or `hvd.Adasum`, which combines the changes of
    parameters instead of gradients. `backward_passes_per_step`: how many backward passes add to a
    gradient before it is reduced (1). `gradient_predivide_factor`: divides gradients before they
    are summed; the rest of the average comes after (1). `groups`: in how many groups parameters are
    reduced, or the groups themselves (`num_groups` is its older form); by default in buckets of
    neighbours, of 4 MiB on the CPU and 25 MiB on devices. `sparse_as_dense`: sparse gradients are
    reduced as dense ones, and are sparse again afterwards. `process_set`: the ranks that train
    together, by default all. All ranks must make their optimizers in the same order.

    A `backward` through a gradient that was reduced already, with no step since, raises
    `AssertionError`, as there. It does not where the program has changed the gradient in place
    since (clipped it, or set it to zero) and `op` is `hvd.Average`: what is added to an average is
    averaged again, and each rank has what one process would have.

    An optimizer that was made distributed before begins anew, with these arguments. Raises
    `ValueError` before `init`, for names that are not unique or do not cover the parameters, and
    for options that contradict each other; `TypeError` for what is no optimizer, such as a class of
    them, and for a compression that cannot compress. After `horovod.torch.DistributedOptimizer`.
    """
    _check_operation(op, gradient_predivide_factor)
    if num_groups:
        warnings.warn("num_groups is deprecated: say groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    _check_kinds(optimizer, compression)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = _checked_names(named_parameters, parameters)
    passes = _checked_passes(backward_passes_per_step)
    options = ReducerOptions(
        compression,
        process_set,
        Reduction(op, 1.0 / gradient_predivide_factor, gradient_predivide_factor),
        sparse_as_dense,
    )
    if op is ReduceOp.ADASUM:
        return _become(
            optimizer,
            Combined,
            _options=options,
            _prefix=f"optimizer.{PROCESS.next_number(current_session())}",
            _names=names,
            backward_passes_per_step=passes,
            process_set=process_set,
        )
    reducer = GradientReducer(options, names, _groups(groups, parameters, names), passes)
    reducer.watch(parameters)
    return _become(
        optimizer,
        _DistributedOptimizer,
        _reducer=reducer,
        _compression=compression,
        _skips=False,
        _was_synchronized=False,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )


def _check_kinds(optimizer: object, compression: object) -> None:
    """Raises `TypeError` for what is no optimizer, and what cannot compress."""
    given = ""
    if isinstance(optimizer, type):
        given = f"the class {optimizer.__name__}"
    elif not hasattr(optimizer, "param_groups"):
        given = f"a {type(optimizer).__name__}"
    if given:
        raise TypeError(
            "optimizer is one that was made already, as torch.optim.SGD(model.parameters(), "
            f"lr=0.1), not {given}"
        )
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            "compression is one of hvd.Compression, such as hvd.Compression.fp16, or a class with "
            f"compress and decompress, not {compression!r}"
        )


def _become(optimizer: torch.optim.Optimizer, gain: type, **attributes: object) -> Any:
    """Gives the object a class that derives from its own and from `gain`."""
    own_class: type = vars(type(optimizer)).get(_OWN_CLASS, type(optimizer))
    members = {_OWN_CLASS: own_class, "__reduce_ex__": _reduce_to_own_class}
    optimizer.__class__ = type(own_class.__name__, (gain, own_class), members)
    # A scheduler that was there first has put a step of the old class into the instance.
    optimizer.__dict__.pop("step", None)
    # Hooks of a former reducer notice nothing any more.
    optimizer.__dict__.pop("_reducer", None)
    optimizer.__dict__.update(attributes)
    return optimizer


def _reduce_to_own_class(optimizer: torch.optim.Optimizer, _protocol: int) -> tuple[Any, ...]:
    own_class = vars(type(optimizer))[_OWN_CLASS]
    return object.__new__, (own_class,), optimizer.__getstate__()


def _check_operation(op: ReduceOp, predivide_factor: float) -> None:
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM):
        raise ValueError(
            f"op must be hvd.Average, hvd.Sum or hvd.Adasum for gradients, but is {op!r}"
        )
    if predivide_factor != 1.0 and op is not ReduceOp.AVERAGE:
        raise ValueError("gradient_predivide_factor is a part of the average: use op=hvd.Average")


def _checked_names(
    named: Iterable[tuple[str, torch.Tensor]] | None, parameters: list[torch.Tensor]
) -> dict[torch.Tensor, str]:
    if named is None:
        return {parameter: f"noname.{number}" for number, parameter in enumerate(parameters)}
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters must be pairs of a name and a parameter, as "
            "model.named_parameters() gives them"
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"names of parameters must differ, but these occur twice: {twice}")
    found = {parameter: name for name, parameter in pairs}
    missing = sum(parameter not in found for parameter in parameters)
    if missing:
        raise ValueError(f"{missing} parameters of the optimizer are not in named_parameters")
    return found


def _groups(
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    parameters: list[torch.Tensor],
    names: Iterable[torch.Tensor],
) -> list[list[torch.Tensor]]:
    """Returns which parameters are reduced together: as was asked for, or in buckets."""
    if groups is None:
        own = set(parameters)  # there may be names of others, which have an optimizer of their own
        return buckets_of([each for each in names if each in own])
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups must not be negative, but is {groups}")
        share, rest = divmod(len(parameters), groups or 1)
        sizes = [share + (number < rest) for number in range(groups)]
        remaining = iter(parameters)
        return [[next(remaining) for _ in range(size)] for size in sizes if size]
    chosen = [list(group) for group in groups]
    members = [member for group in chosen for member in group]
    if any(not isinstance(member, torch.Tensor) for member in members):
        raise ValueError("groups must be a number or lists of parameters")
    if len(set(members)) != len(members):
        raise ValueError("a parameter is in two groups, or twice in one")
    known = set(parameters)
    if any(member not in known for member in members):
        raise ValueError("a group has a parameter that is not the optimizer's")
    return [group for group in chosen if group]


def _checked_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, but is {passes}")
    return passes
