"""Which gradients are reduced together, and when a group has all that it gets in this step."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from lockstitch.collectives.fusion import buckets
from lockstitch.memory.sizes import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

_BUCKET_BYTES: Final = 4 << 20
_BUCKET_BYTES_OF_DEVICES: Final = 25 << 20  # each bucket there costs copies and waits of its own


class ParameterState:
    """What is known of one parameter. The hook of the parameter holds it, so it must not hold the
    parameter."""

    __slots__ = (
        "count",
        "counted",
        "group",
        "is_complete",
        "is_filled",
        "is_hooked",
        "is_submitted",
        "name",
        "reduced_version",
        "sparse_dim",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.group: int | None = None
        """Its number."""
        self.is_hooked = False
        self.sparse_dim: int | None = None
        """Of its gradients, if they have been sparse."""
        self.begin_step()

    def begin_step(self) -> None:
        """Notes that nothing was done with the gradient in this step."""
        self.count = 0
        """How often it was added to."""
        self.counted: weakref.ref[torch.Tensor] | None = None
        """The gradient that was counted: another one begins anew."""
        self.reduced_version: int | None = None
        """Of the gradient, when it was reduced: one that the program has changed since may begin
        anew."""
        self.is_complete = False
        """Whether its group counts it among those that have all that they get in this step."""
        self.is_submitted = False
        self.is_filled = False
        """Whether zeros were reduced in its place."""

    def count_pass(self, gradient: torch.Tensor | None) -> int:
        """Notes that backward has added to the gradient; how often it has. One that replaces
        another begins anew."""
        assert gradient is not None
        if self.counted is None or self.counted() is not gradient:
            self.counted = weakref.ref(gradient)
            if not self.is_submitted:
                self.count = 0
        self.count += 1
        return self.count


class Groups:
    """The groups of one optimizer's parameters; each parameter is in one of them at most."""

    def __init__(
        self,
        groups: Iterable[Sequence[torch.Tensor]],
        states: Mapping[torch.Tensor, ParameterState],
    ) -> None:
        self._groups = [tuple(group) for group in groups]
        self._states = states
        for number, group in enumerate(self._groups):
            for parameter in group:
                states[parameter].group = number
        self._complete: dict[int, int] = {}
        """Of each group, by its number, how many members have all that they get in this step."""

    def begin_anew(self) -> None:
        """No gradient has all that it gets."""
        for state in self._states.values():
            state.is_complete = False
        self._complete.clear()

    def take_back(self, state: ParameterState) -> None:
        """A gradient that had all that it gets was replaced by another one."""
        if state.is_complete:
            assert state.group is not None
            state.is_complete = False
            self._complete[state.group] -= 1

    def complete(self, state: ParameterState) -> bool:
        """A gradient has all that it gets; whether its whole group has, so that it can go."""
        number = state.group
        if number is None:
            return True
        if not state.is_complete:
            state.is_complete = True
            self._complete[number] = self._complete.get(number, 0) + 1
        done, group = self._complete[number], self._groups[number]
        return done == len(group) or done == sum(each.requires_grad for each in group)

    def unit(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Returns what is reduced together with a parameter, itself included: of its group those
        that want gradients and were not submitted yet. One that was frozen, and has a gradient from
        before, goes alone."""
        number = self._states[parameter].group
        if number is None or not parameter.requires_grad:
            return [parameter]
        return [
            each
            for each in self._groups[number]
            if each.requires_grad and not self._states[each].is_submitted
        ]


def buckets_of(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Parameters of one dtype and device that follow each other, put together up to a size beyond
    which a reduction does not get cheaper; from the last one, of which backward knows first."""
    is_on_host = all(parameter.is_cpu for parameter in parameters)
    joined: list[list[torch.Tensor]] = buckets(
        reversed(parameters),
        lambda each: (each.dtype, each.device),
        lambda each: each.nbytes + ALIGNMENT,
        _BUCKET_BYTES if is_on_host else _BUCKET_BYTES_OF_DEVICES,
    )
    return joined
