"""A module run twice for one result: once to give it, and once more, later, for its graph.

The second time everything must be as it was the first time. Buffers are put back meanwhile, for
what is written to them counts once; the copies of those that do not change are shared by all
micro-batches. Parameters must not change in between, other than by the module itself: where
somebody else has written to one, or given it other data, there is no second time. (Steps of other
trainers' distributed optimizers are not noticed, as by no graph: see `optim.local`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.func import functional_call

from lockstitch.nn.slots.module_changes import place_of
from lockstitch.torch_internals.tensors import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class Former(NamedTuple):
    """How a module was before it ran. Nobody writes to these copies of buffers; `changed` names
    those that the run has changed."""

    buffers: dict[str, torch.Tensor]
    changed: frozenset[str]
    writes: int


class Recomputing:
    """Runs one module, again where it is asked to."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._latest: dict[str, torch.Tensor] = {}
        self._versions: dict[str, object] | None = None
        self._writes = 0
        """How often others were seen to have written to parameters."""

    def run(self, arguments: Arguments) -> tuple[Any, Former]:
        """Runs it for the first time; returns the result, and what `run_again` needs."""
        self._look_for_writes()
        before = self._latest = {
            name: _kept(self._latest.get(name), buffer)
            for name, buffer in self._module.named_buffers()
        }
        args, kwargs = arguments
        output = self._module(*args, **kwargs)
        changed = [
            name
            for name, buffer in self._module.named_buffers()
            if name in before and not _are_same(before[name], buffer)
        ]
        self._versions = self._versions_now()
        return output, Former(before, frozenset(changed), self._writes)

    def run_again(self, former: Former, arguments: Arguments) -> Any:
        """Runs it as it was then, and leaves its buffers as they are. Raises `RuntimeError` where
        parameters were changed meanwhile."""
        self._look_for_writes()
        if former.writes != self._writes:
            raise RuntimeError(
                "a parameter was written to between the forward pass of a stage and its "
                "recomputation, which would give gradients of something else: write to it between "
                "the steps of the pipeline, or make the pipeline without recompute for this stage"
            )
        now = dict(self._module.named_buffers())
        buffers = {
            name: buffer.clone()
            for name, buffer in former.buffers.items()
            if name in now and (name in former.changed or not _are_same(buffer, now[name]))
        }
        args, kwargs = arguments
        if buffers:
            output = functional_call(self._module, buffers, args, dict(kwargs))
        else:
            output = self._module(*args, **kwargs)
        self._versions = self._versions_now()
        return output

    def _look_for_writes(self) -> None:
        if self._versions is not None and self._versions != self._versions_now():
            self._writes += 1

    def _versions_now(self) -> dict[str, object]:
        return {
            name: (version_of(parameter), place_of(parameter))
            for name, parameter in self._module.named_parameters()
            if not parameter.is_inference()
        }


def _kept(copy: torch.Tensor | None, buffer: torch.Tensor) -> torch.Tensor:
    return copy if copy is not None and _are_same(copy, buffer) else buffer.clone()


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    are_alike = one.dtype == other.dtype and one.device == other.device
    return are_alike and torch.equal(one, other)
