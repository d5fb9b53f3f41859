"""What code has entered when it stops is taken from the thread, and put back when it goes on."""

from __future__ import annotations

import contextlib

import pytest
import torch

from lockstitch.modes import are_plain
from lockstitch.runtime.own_modes import OwnModes


def test_plain_thread_stays_plain() -> None:
    modes = OwnModes()
    modes.suspend()
    assert torch.is_grad_enabled()
    modes.resume()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
    ],
    ids=["no_grad", "inference", "autocast", "device"],
)
def test_mode_is_suspended_and_resumed(mode) -> None:
    def look() -> tuple[object, ...]:
        kind = torch.empty(0).device.type
        return (torch.is_grad_enabled(), are_plain(), torch.is_autocast_enabled("cpu"), kind)

    outside, modes = look(), OwnModes()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mode())
        inside = look()
        assert inside != outside
        for _ in range(2):
            modes.suspend()
            assert look() == outside
            modes.resume()
            assert look() == inside
    assert look() == outside


def test_two_pieces_of_code_take_turns() -> None:
    one, other = OwnModes(), OwnModes()
    with contextlib.ExitStack() as of_one, contextlib.ExitStack() as of_other:
        of_one.enter_context(torch.inference_mode())
        one.suspend()
        of_other.enter_context(torch.no_grad())
        other.suspend()
        one.resume()
        assert torch.is_inference_mode_enabled()
        of_one.close()
        one.suspend()
        assert torch.is_grad_enabled()
        other.resume()
        assert not torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_autocast_keeps_no_copy_of_a_weight_that_others_may_change() -> None:
    weight, modes = torch.ones(2, 2, requires_grad=True), OwnModes()
    with torch.autocast("cpu", torch.bfloat16):
        before = torch.mm(weight, torch.eye(2))
        modes.suspend()
        with torch.no_grad():
            weight.mul_(3)
        modes.resume()
        after = torch.mm(weight, torch.eye(2))
    assert (before.float() == 1).all()
    assert (after.float() == 3).all()
