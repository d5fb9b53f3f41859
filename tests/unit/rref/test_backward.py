from __future__ import annotations

import pytest
import torch

from lockstitch.errors import RRefError
from lockstitch.rref.backward import BackwardService, backward_from


class Passes:
    """Stands for distributed autograd."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, list[torch.Tensor], bool]] = []

    def backward(self, context_id, roots, retain_graph):
        self.begun.append((context_id, list(roots), retain_graph))


class WorkerWithPasses:
    def __init__(self) -> None:
        self.passes = Passes()

    def service(self, cls):
        assert issubclass(Passes, cls)
        return self.passes


def test_without_a_context_it_is_a_local_pass():
    leaf = torch.ones(2, requires_grad=True)
    root = leaf.sum()
    backward_from(WorkerWithPasses(), root, -1, retain_graph=True)
    backward_from(WorkerWithPasses(), root, -1, retain_graph=False)
    assert leaf.grad.tolist() == [2, 2]


def test_with_a_context_autograd_is_asked():
    worker, root = WorkerWithPasses(), torch.ones(())
    backward_from(worker, root, 7, retain_graph=True)
    assert worker.passes.begun == [(7, [root], True)]


@pytest.mark.parametrize("context", [-1, 7])
def test_only_tensors_can_be_roots(context):
    with pytest.raises(RRefError, match=r"RRef should contain a tensor for .backward\(\)"):
        backward_from(WorkerWithPasses(), "text", context, retain_graph=False)


@pytest.mark.parametrize(
    ("root", "text"),
    [
        (torch.ones(2), "does not require grad and does not have a grad_fn"),
        (torch.ones(2, requires_grad=True), "grad can be implicitly created only for scalar"),
    ],
)
def test_a_local_pass_has_the_errors_of_torch(root, text):
    with pytest.raises(RuntimeError, match=text):
        backward_from(WorkerWithPasses(), root, -1, retain_graph=False)


def test_autograd_fits_the_protocol():
    assert issubclass(Passes, BackwardService)
