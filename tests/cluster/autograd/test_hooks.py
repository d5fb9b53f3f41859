"""Hooks of every kind, on what is sent and what is received: called as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook

from lockstitch.errors import DistAutogradError
from tests.cluster.autograd.comparison import OWNED, assert_same, call, run_on, run_plain

HEARD: list[Any] = []


def hear(name: str) -> Any:
    return lambda gradient: HEARD.append((name, None if gradient is None else gradient.tolist()))


def hook_tensors(*tensors: torch.Tensor) -> None:
    for place, tensor in enumerate(tensors):
        tensor.register_hook(hear(f"hook {place}"))


def hook_nodes(*tensors: torch.Tensor) -> None:
    for place, tensor in enumerate(tensors):
        node = get_gradient_edge(tensor).node
        node.register_prehook(lambda grads, place=place: hear(f"prehook {place}")(grads[0]))
        node.register_hook(lambda _into, out, place=place: hear(f"after {place}")(out[0]))


def hook_all(*tensors: torch.Tensor) -> None:
    register_multi_grad_hook(
        tensors, lambda grads: HEARD.append([g if g is None else g.tolist() for g in grads])
    )


def hook_any(*tensors: torch.Tensor) -> None:
    register_multi_grad_hook(tensors, hear("any"), mode="any")


HOOKS = [hook_tensors, hook_nodes, hook_all, hook_any]


@pytest.fixture(autouse=True)
def _forget() -> None:
    HEARD.clear()


def first_of(hook: Any, one: torch.Tensor, other: torch.Tensor, third: torch.Tensor) -> Any:
    hook(one, other, third)
    return one * third * OWNED["w"]


def three(hook: Any, one: torch.Tensor) -> Any:
    results = one * 2, one * OWNED["w"], one.sin()
    if hook is not None:
        hook(*results)
    return results


def heard(cluster: Any, program: Any) -> None:
    """The gradients, and what the hooks hear, are those of one process."""
    plain = run_plain(program)
    expected = list(HEARD)
    HEARD.clear()
    distributed = run_on(cluster, program)
    assert {name: each.tolist() for name, each in distributed.items()} == {
        name: each.tolist() for name, each in plain.items()
    }
    assert sorted(map(str, HEARD)) == sorted(map(str, expected))
    assert expected


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_arguments_of_which_one_takes_no_part(cluster, hook):
    heard(
        cluster,
        lambda leaves: [
            call("worker1", first_of, hook, leaves["x"] * 2, leaves["y"] * 3, leaves["v"] * 4)
        ],
    )


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_results_of_which_one_takes_no_part(cluster, hook):
    def program(leaves):
        one, other, third = call("worker1", three, None, leaves["x"] * 2)
        hook(one, other, third)
        return [one * third]

    heard(cluster, program)


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_what_was_sent_of_which_one_takes_no_part(cluster, hook):
    def program(leaves):
        one, _, third = call("worker1", three, hook, leaves["x"] * 2)
        return [one * third]

    heard(cluster, program)


def test_hooks_of_leaves_that_were_sent(cluster):
    def program(leaves):
        hook_tensors(leaves["x"], leaves["y"], leaves["v"])
        return [call("worker1", first_of, _no_hook, leaves["x"], leaves["y"], leaves["v"])]

    heard(cluster, program)


def test_a_hook_for_any_of_several_leaves_is_called_once(cluster):
    def program(leaves):
        hook_any(leaves["x"], leaves["y"], leaves["v"])
        return [call("worker1", first_of, _no_hook, leaves["x"], leaves["y"], leaves["v"])]

    run_on(cluster, program)
    assert len(HEARD) == 1


def test_a_hook_for_all_of_several_leaves_is_refused(cluster):
    def program(leaves):
        hook_all(leaves["x"], leaves["y"], leaves["v"])
        return [call("worker1", first_of, _no_hook, leaves["x"], leaves["y"], leaves["v"])]

    with pytest.raises(DistAutogradError, match="leaf node was passed"):
        run_on(cluster, program)


def _no_hook(*_tensors: torch.Tensor) -> None: ...


def retain(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        tensor.retain_grad()
    HEARD.append(tensors)


def test_retained_gradients_of_arguments(cluster):
    def program(leaves):
        return [call("worker1", first_of, retain, leaves["x"] * 2, leaves["y"], leaves["v"] * 4)]

    assert_same(cluster, program, modes=("smart",))
    plain, distributed = HEARD
    for mine, its in zip(plain, distributed, strict=True):
        assert (mine.grad is None) is (its.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, its.grad)


@pytest.mark.parametrize("kind", ["hook", "prehook", "tensor"])
def test_hooks_of_a_leaf_and_of_its_node(cluster, kind):
    kept = []

    def program(leaves):
        leaf = leaves["w"]
        node = get_gradient_edge(leaf).node
        kept.append(node)
        if kind == "prehook":
            node.register_prehook(lambda grads: (grads[0] * 3,))
        elif kind == "tensor":
            leaf.register_hook(lambda grad: grad * 3)
        else:
            node.register_hook(lambda _into, out: hear("node")(out[0]))
        hear("begun")(torch.ones(1))
        return [call("worker1", first_of, _no_hook, leaves["x"] * 2, leaves["y"], leaves["v"] * 4)]

    heard(cluster, program)


def test_a_tensor_that_was_received_with_others_is_detached_in_place(cluster):
    def program(leaves):
        one, other, _ = call("worker1", three, None, leaves["x"] * 2)
        other.detach_()
        one.mul_(3)
        return [one * other]

    assert_same(cluster, program)
