"""The face, on a worker without peers."""

from __future__ import annotations

import pytest
import torch

from lockstitch import autograd
from lockstitch.autograd.service import AutogradService
from lockstitch.errors import NotInitializedError
from lockstitch.rref.rref import RRef
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.autograd.comparison import wait_until
from tests.unit.wire.interrupts import interrupted, strike_everywhere


@pytest.fixture
def worker():
    with LocalCluster(1) as cluster, cluster[0].active():
        yield cluster[0]


def test_without_a_worker_nothing_works():
    for attempt in (
        lambda: autograd.context().__enter__(),
        lambda: autograd.backward(0, [torch.ones(1)]),
        lambda: autograd.get_gradients(0),
    ):
        with pytest.raises(NotInitializedError, match="RPC has not been initialized"):
            attempt()


def test_a_context_yields_its_id_and_ends_with_its_block(worker):
    with autograd.context() as context_id:
        assert isinstance(context_id, int)
        assert autograd.get_gradients(context_id) == {}
    with pytest.raises(
        RuntimeError, match=f"Could not find autograd context with id: {context_id}"
    ):
        autograd.get_gradients(context_id)


def test_a_context_ends_with_an_exception_too(worker):
    with pytest.raises(KeyError), autograd.context() as context_id:
        raise KeyError
    with pytest.raises(RuntimeError, match="Could not find"):
        autograd.get_gradients(context_id)
    with autograd.context():
        pass


def test_a_context_that_was_released_within_its_block_ends_quietly(worker):
    with autograd.context() as context_id:
        autograd._release_context(context_id)
    with autograd.context():
        pass


def test_a_block_whose_end_is_interrupted_keeps_nobody_from_the_next(worker):
    modules = [f"lockstitch.autograd.{name}" for name in ("api", "service", "contexts", "context")]

    def attempt(number):
        with interrupted(number, *modules) as striker, autograd.context():
            pass
        with autograd.context():
            pass
        assert wait_until(lambda: not worker.service(AutogradService).contexts), striker.where
        return striker

    assert strike_everywhere(attempt) > 10


@pytest.mark.parametrize(
    "arguments", [(0, None), (None, None), (None, []), (0, [1]), (0.5, []), (0, "r")]
)
def test_wrong_types_are_refused_in_torchs_words(worker, arguments):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        autograd.backward(*arguments)


def test_modes_have_names(worker):
    with autograd.context() as context_id, pytest.raises(ValueError, match="'smart' or 'fast'"):
        autograd.backward(context_id, [], mode="quick")


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_backward_adds_to_the_context(worker, mode):
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        for _ in range(2):
            autograd.backward(context_id, [(x * 3).sum()], mode=mode)
        assert autograd.get_gradients(context_id)[x].tolist() == [6.0, 6.0]
        assert x.grad is None


def test_a_reference_among_the_roots_is_told_to_be_fetched(worker):
    with pytest.raises(TypeError, match=r"incompatible function arguments.*rref\.to_here\(\)"):
        autograd.backward(0, [RRef(torch.ones(1))])


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_grad_adds_nothing_to_the_context(worker, mode):
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    with autograd.context() as context_id:
        root = (x * 3).sum()
        (found,) = autograd.grad(context_id, root, x, mode=mode, retain_graph=True)
        assert found.tolist() == [3.0, 3.0]
        assert autograd.get_gradients(context_id) == {}
        (twice, same) = autograd.grad(context_id, [root, root], [x, x], mode=mode)
        assert twice.tolist() == same.tolist() == [6.0, 6.0]
        root = (x * 3).sum()
        found, zeros = autograd.grad(context_id, root, [x, y], materialize_grads=True, mode=mode)
        assert zeros.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((5, torch.ones(1)), "outputs is a tensor or a list"),
        ((torch.ones(1), "x"), "inputs is a tensor or a list"),
        ((torch.ones(1), [1]), r"inputs\[0\] is a int, not Tensor or RRef"),
        ((torch.ones(1), torch.ones(1), [1]), r"grad_outputs\[0\] is a int"),
    ],
)
def test_grad_refuses_wrong_types(worker, arguments, words):
    with autograd.context() as context_id, pytest.raises(TypeError, match=words):
        autograd.grad(context_id, *arguments)


@pytest.mark.parametrize(("outputs", "name"), [([], "outputs"), (torch.ones(1), "inputs")])
def test_grad_refuses_empty_lists_as_torch_does(worker, outputs, name):
    with autograd.context() as context_id, pytest.raises(RuntimeError, match=f"{name} cannot be"):
        autograd.grad(context_id, outputs, torch.ones(1) if name == "outputs" else ())


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_gradients_with_a_history_are_added_to_out_of_place(worker, mode):
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    with autograd.context() as context_id:
        autograd.backward(context_id, [(x**3).sum()], create_graph=True, mode=mode)
        first = autograd.get_gradients(context_id)[x]
        autograd.backward(context_id, [first.sum()], create_graph=True, mode=mode)
        second = autograd.get_gradients(context_id)[x]
        assert first.tolist() == [12.0, 27.0]
        assert second.tolist() == [24.0, 45.0]
        (third,) = autograd.grad(context_id, second.sum(), x)
        assert third.tolist() == [18.0, 24.0]  # 6x of the first, and 6 of the second
