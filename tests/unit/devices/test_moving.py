"""Moving, as far as it goes without an accelerator; `tests/gpu` has the rest."""

from __future__ import annotations

import torch

from lockstitch.devices import moving
from lockstitch.devices.kinds import HOST


def test_what_is_staged_out_is_a_copy_without_a_graph() -> None:
    tensor = torch.ones(2, requires_grad=True)
    copy = moving.stage_out(tensor)
    assert torch.equal(copy, tensor)
    assert not copy.requires_grad


def test_what_is_where_it_belongs_is_not_moved() -> None:
    tensor = torch.ones(2)
    (moved,) = moving.move_all([tensor], [HOST])
    assert moved is tensor
