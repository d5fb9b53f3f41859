"""Random numbers of the slots: the same for the same seed, and none taken from the caller.

The seed of a slot's pass follows from the state in which the caller's generators are before the
call, and from the slot's number. So `torch.manual_seed` governs all slots, and what the caller
draws is what slot 0 draws.

A module draws from the generator of its device, and from that of the CPU.

Whether it draws at all is seen by the caller's part (`fingerprint`, before and after). A part that
draws where the caller's does not takes its numbers from the caller's generator if it runs in this
process: to look after each short pass would take as long as many of them do.
"""

from __future__ import annotations

import contextlib
import weakref
import zlib
from typing import TYPE_CHECKING, TypeAlias

from lockstitch.devices.kinds import HOST, generators_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

Mode: TypeAlias = tuple[bool, bool]
"""Whether the module is training, and whether there is to be a graph."""

_ODD = 0x9E3779B97F4A7C15
_BITS = (1 << 63) - 1


def fingerprint(device: torch.device = HOST) -> int:
    """A number for the state of the generators that a module on `device` draws from; 10 µs."""
    state = 0
    for generator in generators_of(device):
        state = zlib.crc32(generator.get_state().numpy(), state)  # type: ignore[arg-type]
    return state


def seed_for(state: int, slot: int) -> int:
    """The seed for a pass of the slot of this number."""
    return ((state << 16 | slot) * _ODD) & _BITS


def seed(number: int, device: torch.device = HOST) -> None:
    """Sets the generators that a module on `device` draws from."""
    for generator in generators_of(device):
        generator.manual_seed(number)


@contextlib.contextmanager
def kept(device: torch.device = HOST) -> Iterator[None]:
    """A context after which the generators of `device` are in the states that they had before."""
    states = states_of(device)
    try:
        yield
    finally:
        restore(states, device)


def states_of(device: torch.device = HOST) -> list[torch.Tensor]:
    """The states of the generators of `device`."""
    return [each.get_state() for each in generators_of(device)]


def restore(states: list[torch.Tensor], device: torch.device = HOST) -> None:
    """Puts them back into these states."""
    for generator, state in zip(generators_of(device), states, strict=True):
        generator.set_state(state)


class DrawingModes:
    """Knows in which modes a module on `device` draws random numbers, as far as its calls have
    shown."""

    def __init__(self, module: nn.Module, device: torch.device = HOST) -> None:
        self._module = weakref.ref(module)
        self._device = device
        self._draws: dict[Mode, bool] = {}

    def mode(self, is_grad_enabled: bool) -> Mode:
        """The mode in which the module is now; not training if it is gone."""
        module = self._module()
        return module is not None and module.training, is_grad_enabled

    def never_drew(self, mode: Mode) -> bool:
        """Whether it was called in that mode, and has never drawn any."""
        return self._draws.get(mode) is False

    def note(self, mode: Mode) -> None:
        """It draws in that mode."""
        self._draws[mode] = True

    def note_call(self, mode: Mode, state: int) -> bool:
        """Learns from the caller's own part of a call, before which the `fingerprint` was `state`;
        returns whether that part has drawn any."""
        draws = fingerprint(self._device) != state
        self._draws[mode] = draws or self._draws.get(mode, False)
        return draws
