"""Fit and unfit roots."""

from __future__ import annotations

import pytest
import torch

from lockstitch.autograd.roots import enter_at, enter_with


@pytest.mark.parametrize(
    ("roots", "words"),
    [
        ([], "No tensors provided for gradient computation"),
        ([torch.ones(())], "requires_grad not set on"),
        ([torch.ones(2, requires_grad=True) * 2], "is not a scalar, all roots need to be scalar"),
        ([torch.ones(1, requires_grad=True)], "does not have a valid gradient function.*context$"),
    ],
)
def test_unfit_roots_are_refused_in_torchs_words(roots, words):
    with pytest.raises(RuntimeError, match=words):
        enter_at(roots)


def test_each_root_begins_with_one():
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    roots = [x.sum(), (x * 2).sum().reshape(1, 1)]
    entry, gradients = enter_at(roots)
    assert entry.message is None
    assert [edge.node for edge in entry.edges] == [root.grad_fn for root in roots]
    assert [gradient.tolist() for gradient in gradients] == [1.0, [[1.0]]]
    assert gradients[0].dtype is torch.float64


def test_a_root_may_be_one_of_several_outputs():
    one, other = torch.ones(2, requires_grad=True).unbind()
    entry, _ = enter_at([other, one])
    assert [edge.output_nr for edge in entry.edges] == [1, 0]


def test_outputs_begin_with_what_is_given():
    x = torch.ones(2, requires_grad=True)
    given = torch.full((2,), 3.0)
    entry, gradients = enter_with([x * 2, x.sum()], [given, None])
    assert gradients[0] is given
    assert gradients[1].item() == 1.0
    assert len(entry.edges) == 2


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (None, RuntimeError, r"outputs\[0\] is a tensor of shape \(2,\).*grad_outputs says"),
        ([torch.ones(3)], RuntimeError, r"grad_outputs\[0\] is a tensor of shape \(3,\).*same"),
        ([None, None], ValueError, "got 1 outputs and 2 grad_outputs"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        enter_with([torch.ones(2, requires_grad=True) * 2], given)


def test_an_output_without_a_history_is_refused():
    with pytest.raises(RuntimeError, match=r"outputs\[0\], .* does not require grad.*context"):
        enter_with([torch.ones(())], None)
