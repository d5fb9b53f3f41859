"""One owner's share of a distributed optimizer: a plain `torch.optim` optimizer that may step while
other trainers' backward passes are in flight.

An optimizer writes into its parameters in place. Autograd notices: a graph that saved such a
parameter in its forward pass refuses to go backward ("modified by an inplace operation"), because
`add_` advanced the version counter that the graph remembers. With several trainers on one parameter
server that is the normal state of affairs, so here the optimizer never sees the parameters
themselves:

    parameter  ──┐
                 ├── one storage: an update through the alias is an update of the parameter
    alias      ──┘   two version counters: no graph that saved the parameter hears of it

What this means for the numbers (*Hogwild*, Niu et al. 2011): a backward pass overtaken by another
trainer's step uses activations of the weights it went forward with, and, where it multiplies by a
weight, that weight's value of now, read without a lock. Such a gradient is off by what the others
moved meanwhile, as in every asynchronous scheme. Without a concurrent step nothing is off: results
equal those of the plain optimizer bit by bit. The price: stepping between a forward pass and its
own *second* backward is no longer noticed. Who must know, because copies are kept equal, asks
`lockstitch.runtime.hidden_writes`.

Steps on the same parameters exclude each other through a lock, so that no update is lost.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.optim import eager
from lockstitch.optim.groups import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

    from lockstitch.optim.groups import Change


class LocalOptimizer:
    """An optimizer over `parameters`, tensors of this process, that steps under `lock`.

    `parameters` may have any form that torch takes: tensors, pairs of a name and a tensor, or dicts
    of groups. `optim` is the `optimizer_class(aliases, *args, **kwargs)` that does the work; its
    parameter groups hold the aliases. Whatever that constructor raises is raised here, and
    `TypeError` where its `step` needs a closure.
    """

    def __init__(
        self,
        optimizer_class: Callable[..., Optimizer],
        parameters: Iterable[Any],
        lock: AbstractContextManager[Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._lock = lock
        self._pairs: dict[int, tuple[Any, Any]] = {}
        """Each parameter and its alias, by the identity of the parameter."""
        aliases = [self._aliased(each) for each in parameters]
        self.optim = eager.make(optimizer_class, aliases, *args, **kwargs)
        _check_step(self.optim)
        _part_options(self.optim)
        self._parameter_of = {id(alias): each for each, alias in self._pairs.values()}

    def _aliased(self, given: Any) -> Any:
        """What was given, with aliases in the place of parameters. One that is given twice has one
        alias."""
        if isinstance(given, dict):
            return {**given, "params": [self._aliased(each) for each in given["params"]]}
        if isinstance(given, tuple) and len(given) == 2:
            return given[0], self._aliased(given[1])
        return self._pairs.setdefault(id(given), (given, _alias(given)))[1]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters in the order of the groups."""
        groups = self.optim.param_groups
        return [self._parameter_of[id(alias)] for group in groups for alias in group["params"]]

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Adds a group of parameters, in torch's form. What torch refuses is raised, and the groups
        are what they were."""
        with self._lock:
            before = dict(self._pairs)
            try:
                eager.method(self.optim, "add_param_group")(self._aliased(group))
                _part_options(self.optim)
            except BaseException:
                self._pairs = before
                raise
            self._parameter_of = {id(alias): each for each, alias in self._pairs.values()}

    def remove_last_group(self) -> None:
        """Takes back the latest `add_param_group`."""
        with self._lock:
            for number in {id(alias) for alias in self.optim.param_groups.pop()["params"]}:
                del self._pairs[id(self._parameter_of.pop(number))]

    def step(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> dict[int, dict[str, Any]]:
        """Updates each parameter that has a gradient among `gradients`; leaves the others alone.
        Returns the options that the step has changed, by the number of their group: few optimizers
        change any.

        The parameters' own `.grad` are neither read nor written.
        """
        with self._lock:
            before = [dict(group) for group in self.optim.param_groups]
            for parameter, alias in self._pairs.values():
                # A program may have given the parameter another storage (`.to`, `.data =`).
                alias.data = parameter.data
                alias.grad = gradients.get(parameter)
            try:
                eager.step(self.optim)
            finally:
                for parameter, alias in self._pairs.values():
                    alias.grad = None
                    if parameter is not alias and not parameter.is_set_to(alias):
                        # The optimizer replaced the storage instead of writing into it.
                        parameter.data = alias.data
            return _changed(before, self.optim.param_groups)

    def alias_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Through which steps write to a tensor; None where they do not."""
        pair = self._pairs.get(id(tensor))
        return None if pair is None else pair[1]

    # ------------------------------------------------------------ options

    def options(self) -> list[dict[str, Any]]:
        """The options of each group, as others may see them."""
        with self._lock:
            return [shown(group) for group in self.optim.param_groups]

    def change(self, changes: Mapping[int, Change]) -> None:
        """Assigns options of groups, by the numbers of these, between two steps."""
        if changes:
            with self._lock:
                for number, change in changes.items():
                    _change(self.optim.param_groups[number], change)

    # ------------------------------------------------------------ states

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the optimizer between two steps; parameters are numbered in their
        order."""
        with self._lock:
            return copy.deepcopy(eager.method(self.optim, "state_dict")())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from that state. Raises `ValueError` where it does not fit."""
        with self._lock:
            eager.method(self.optim, "load_state_dict")(state)
            _part_options(self.optim)


def _part_options(optimizer: Optimizer) -> None:
    """Gives each group a tensor of its own where torch has one for all, that of the defaults: which
    groups share it, some of them on other workers, is known where the options are assigned."""
    known = {id(value) for value in optimizer.defaults.values()}
    for group in optimizer.param_groups:
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                if id(value) in known:
                    group[key] = value.clone()
                known.add(id(value))


def _change(group: dict[str, Any], change: Change) -> None:
    for key, value in change.assigned.items():
        own: Any = group.get(key)
        if _are_alike(own, value):
            own.copy_(value)  # where it is: on a device, or in a graph that was captured
        else:
            group[key] = value
    for key in change.removed:
        group.pop(key, None)


def _are_alike(own: Any, other: Any) -> bool:
    are_tensors = isinstance(own, torch.Tensor) and isinstance(other, torch.Tensor)
    return are_tensors and own.shape == other.shape and own.dtype == other.dtype


def _changed(
    before: list[dict[str, Any]], groups: list[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    changed = {}
    for number, (old, new) in enumerate(zip(before, groups, strict=True)):
        differing = {
            key: value
            for key, value in new.items()
            if value is not old.get(key) and not isinstance(value, torch.Tensor)
        }
        if differing:
            changed[number] = shown(differing)
    return changed


def _check_step(optimizer: Optimizer) -> None:
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError as error:
        raise TypeError(
            f"{type(optimizer).__name__}.step needs a closure that computes loss and gradients, "
            "several times within one step perhaps: a distributed optimizer can only step by "
            "gradients that are there, as SGD and Adam do"
        ) from error
    except ValueError:  # it does not say what it takes
        pass


def _alias(parameter: Any) -> Any:
    """A leaf with the storage of `parameter` and a version counter of its own.

    What is no leaf tensor is passed on as it is, for the optimizer to refuse in its own words; so
    are sparse tensors, whose memory is not one storage.
    """
    if not isinstance(parameter, torch.Tensor):
        return parameter
    if not parameter.is_leaf or parameter.layout != torch.strided:
        return parameter
    # `.data`, unlike `.detach()`, does not share the version counter.
    return parameter.data.requires_grad_(parameter.requires_grad)
