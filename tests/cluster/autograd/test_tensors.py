"""Kinds of tensors and of uses: dtypes, views, in-place writes, sparse gradients, parameters."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch import autograd, rpc
from tests.cluster.autograd.comparison import OWNED, assert_same, call


def scale_in_place(tensor):
    tensor.mul_(3)
    return tensor * OWNED["w"]


def write_into_a_view(tensor):
    tensor[1:].mul_(2)
    return tensor.sin()


def write_into_both(one, other):
    one.mul_(2)
    other[0] = 5.0
    return one * other


def take_with_integers(tensor, index, flag, scale):
    return tensor[index] * scale if flag.any() else tensor


def split(tensor):
    return tuple((tensor * OWNED["w"]).unbind())


def matrix(tensor):
    return tensor.outer(OWNED["w"])


def cast(tensor):
    return tensor.float() * 2, tensor.to(torch.complex128) * 1j


def add(one, other):
    return one + other


def test_a_received_tensor_is_written_in_place(cluster):
    assert_same(cluster, lambda leaves: [call("worker1", scale_in_place, leaves["x"].tanh())])


def test_a_view_of_a_received_tensor_is_written(cluster):
    assert_same(cluster, lambda leaves: [call("worker1", write_into_a_view, leaves["x"].tanh())])


def test_both_received_tensors_of_a_message_are_written(cluster):
    assert_same(
        cluster,
        lambda leaves: [call("worker1", write_into_both, leaves["x"].tanh(), leaves["y"].tanh())],
    )


def test_tensors_that_shared_a_storage_are_written(cluster):
    def program(leaves):
        both = torch.cat([leaves["x"].tanh(), leaves["y"].tanh()])
        return [call("worker1", write_into_both, both[:3], both[3:])]

    assert_same(cluster, program)


def test_a_result_is_written_in_place_by_the_caller(cluster):
    def program(leaves):
        y = call("worker1", write_into_a_view, leaves["x"].tanh())
        y.mul_(leaves["y"])
        y[0].add_(1)
        return [y]

    assert_same(cluster, program)


def test_a_tensor_is_written_after_it_was_sent(cluster):
    def program(leaves):
        h = leaves["x"] * 2
        before = call("worker1", write_into_a_view, h)
        h.mul_(leaves["y"])
        h[1:].add_(1)
        after = call("worker1", write_into_a_view, h)
        return [before + after, h]

    assert_same(cluster, program)


def test_integers_and_tensors_without_gradient_between(cluster):
    def program(leaves):
        index = torch.tensor([2, 0])
        flag = torch.tensor([True, False])
        scale = torch.tensor(2.0, dtype=torch.float64)
        return [call("worker1", take_with_integers, leaves["x"].tanh(), index, flag, scale)]

    assert_same(cluster, program)


def test_a_node_with_several_outputs_of_which_one_is_used(cluster):
    assert_same(
        cluster, lambda leaves: [call("worker1", split, leaves["x"].tanh())[1]], ("smart", "fast")
    )


def test_gradients_that_are_not_contiguous(cluster):
    def program(leaves):
        y = call("worker1", matrix, leaves["x"].tanh())
        return [y.t() @ leaves["y"], call("worker2", matrix, leaves["y"].flip(0)).sum(0)]

    assert_same(cluster, program)


def test_other_dtypes(cluster):
    def program(leaves):
        single, imaginary = call("worker1", cast, leaves["x"].tanh())
        return [single, imaginary.imag]

    assert_same(cluster, program)


def test_no_grad_and_inference_mode_at_the_caller_leave_no_record(cluster):
    leaf = torch.ones(3, requires_grad=True)
    worker = cluster[0]
    with worker.active(), autograd.context() as context_id:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert not rpc.rpc_sync("worker1", torch.mul, args=(leaf, 2)).requires_grad
        view = autograd._retrieve_context(context_id)
        assert not view._send_functions()
        assert not view._recv_functions()


MODES = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("reader", ["waiter", "pool"])
@pytest.mark.parametrize("to", ["worker1", "worker0"])
@pytest.mark.parametrize("taken", MODES)
@pytest.mark.parametrize("called", MODES)
def test_the_mode_in_which_a_call_is_made_says_whether_its_future_has_a_graph(
    cluster, called, taken, to, reader
):
    leaf = torch.ones(3, requires_grad=True)
    with cluster[0].active(), autograd.context() as context_id:
        with MODES[called]():
            future = rpc.rpc_async(to, torch.mul, args=(leaf, 2))
        with MODES[taken]():
            if reader == "pool":
                there = threading.Event()
                future.add_done_callback(lambda _: there.set())
                assert there.wait(60)
            result = future.wait()
        assert not result.is_inference()
        assert result.requires_grad == (called == "grad")
        if called == "grad":
            autograd.backward(context_id, [result.sum()])
            assert autograd.get_gradients(context_id)[leaf].tolist() == [2, 2, 2]


@pytest.mark.parametrize("taken", MODES)
@pytest.mark.parametrize("called", MODES)
def test_the_mode_in_which_a_value_is_fetched_says_whether_it_has_a_graph(cluster, called, taken):
    with cluster[0].active(), autograd.context() as context_id:
        weight = rpc.remote("worker1", torch.ones, args=(3,), kwargs={"requires_grad": True})
        with MODES[called]():
            product = rpc.remote("worker1", double, args=(weight,))
        with MODES[taken]():
            result = product.to_here()
        assert result.requires_grad == (taken == "grad")
        if taken == "grad":
            autograd.backward(context_id, [result.sum()])
            assert (
                rpc.rpc_sync("worker1", gradient_of, args=(context_id, weight)).tolist()
                == [2.0] * 3
            )


def double(weight):
    return weight.local_value() * 2


def gradient_of(context_id, weight):
    return autograd.get_gradients(context_id)[weight.local_value()]


class IgnoresTheOther(torch.autograd.Function):
    """Its backward gives the second input no gradient at all."""

    @staticmethod
    def forward(ctx, one, other):
        return one * 2 + other

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def ignore_the_other(one, other):
    return IgnoresTheOther.apply(one, other)


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_a_gradient_that_a_function_does_not_give_is_missing_at_the_sender_too(cluster, mode):
    def program(leaves):
        h, k = leaves["x"].tanh(), leaves["y"].tanh()
        return [call("worker1", ignore_the_other, h, k) + h]

    assert_same(cluster, program, (mode,))


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_a_message_none_of_whose_gradients_is_given(cluster, mode):
    def program(leaves):
        h, k = leaves["x"].tanh(), call("worker2", scale_in_place, leaves["y"].tanh())
        return [call("worker1", ignore_the_other, h, k) + h * leaves["v"]]

    assert_same(cluster, program, (mode,))


def without_gradient(tensor):
    with torch.no_grad():
        return tensor * 2


def test_no_grad_at_the_callee_cuts_the_graph_there(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [h * call("worker1", without_gradient, h)]

    assert_same(cluster, program, ("smart",))


def test_sparse_leaves_and_gradients(cluster):
    def sparse():
        indices, values = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
        tensor = torch.sparse_coo_tensor(indices, values, (3, 3), check_invariants=False)
        return tensor.requires_grad_()

    one, other = sparse(), sparse()
    with cluster[0].active(), autograd.context() as context_id:
        total = rpc.rpc_sync("worker1", add, args=(one, other))
        for _ in range(2):
            autograd.backward(context_id, [torch.sparse.sum(total)], retain_graph=True)
        gradients = autograd.get_gradients(context_id)
        there = torch.sparse.sum(one + other)
        there.backward()
        assert torch.equal(gradients[one].to_dense(), 2 * one.grad.to_dense())
        assert torch.equal(gradients[other].to_dense(), 2 * other.grad.to_dense())


TABLE = torch.nn.Embedding(5, 2, sparse=True)


def look_up(index):
    return torch.nn.functional.embedding(index, TABLE.weight, sparse=True)


def look_up_beside_a_call(scale):
    rows = look_up(torch.tensor([1, 3, 1]))
    return rows * scale


def test_sparse_gradients_of_an_embedding_on_the_callee(cluster):
    scale = torch.tensor(2.0, requires_grad=True)
    look_up_beside_a_call(scale).sum().backward()
    expected, TABLE.weight.grad = TABLE.weight.grad, None
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", look_up_beside_a_call, args=(scale,))
        autograd.backward(context_id, [y.sum()])
        with cluster[1].active():
            gradient = autograd.get_gradients(context_id)[TABLE.weight]
    assert gradient.is_sparse
    assert torch.equal(gradient.to_dense(), expected.to_dense())


def row_of(weight):
    return torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True)


def test_sparse_gradients_that_arrive_in_a_blocking_run(cluster):
    weight = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    h = weight * 2
    (row_of(h).sum() * h.sum()).backward()
    with cluster[0].active(), autograd.context() as context_id:
        h = weight * 2
        y = rpc.rpc_sync("worker1", row_of, args=(h,))
        autograd.backward(context_id, [y.sum() * h.sum()])
        gradient = autograd.get_gradients(context_id)[weight]
    torch.testing.assert_close(gradient, weight.grad)


def use_parameter(parameter, container):
    assert type(parameter) is torch.Tensor
    return parameter * container["inner"]


def test_parameters_as_arguments_stay_on_the_graph(cluster):
    parameter = torch.nn.Parameter(torch.ones(3))
    inner = torch.nn.Parameter(torch.full((3,), 2.0))
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", use_parameter, args=(parameter, {"inner": inner}))
        autograd.backward(context_id, [y.sum()])
        gradients = autograd.get_gradients(context_id)
    assert gradients[parameter].tolist() == [2.0, 2.0, 2.0]
    assert gradients[inner].tolist() == [1.0, 1.0, 1.0]


def checkpointed(tensor):
    return torch.utils.checkpoint.checkpoint(torch.sin, tensor * OWNED["w"], use_reentrant=False)


def test_checkpointing_that_is_not_reentrant(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [call("worker1", checkpointed, h) + h]

    assert_same(cluster, program)


def checkpointed_reentrantly(tensor):
    return torch.utils.checkpoint.checkpoint(torch.sin, tensor, use_reentrant=True)


def test_reentrant_checkpointing_is_refused_by_torch(cluster):
    leaf = torch.ones(3, requires_grad=True)
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", checkpointed_reentrantly, args=(leaf,))
        with pytest.raises(RuntimeError, match="Error on Node 1: .*checkpoint"):
            autograd.backward(context_id, [y.sum()])


def test_a_local_backward_over_a_received_tensor_says_what_to_do(cluster):
    leaf = torch.ones(3, requires_grad=True)
    with cluster[0].active(), autograd.context():
        y = rpc.rpc_sync("worker1", torch.mul, args=(leaf, 2))
        with pytest.raises(RuntimeError, match=r"use lockstitch.autograd.backward"):
            y.sum().backward()


# ---------------------------------------------------------------- tensors that overlap


def write_into_the_second(one, other, *more):
    other.mul_(2)
    return one * other.sum() + sum(each.sum() for each in more)


def overlapping_results(tensor):
    y = tensor * OWNED["w"]
    return y, y[1:], y.view(3, 1).expand(3, 2)


@pytest.mark.parametrize(
    "views",
    [
        lambda x: (x, x[1:]),
        lambda x: (x[:2], x[1:]),
        lambda x: (x, x.view(3, 1)),
        lambda x: (x, x.detach()),
        lambda x: (x.detach(), x),
        lambda x: (x, x.detach()[1:], x[1:]),
        lambda x: (x.expand(3, 3), x.unfold(0, 2, 1)),
        lambda x: (torch.complex(x, x), torch.complex(x, x).conj()),
    ],
    ids=lambda view: "",
)
def test_overlapping_tensors_are_written_each_for_itself(cluster, views):
    def program(leaves):
        return [call("worker1", write_into_the_second, *views(leaves["x"].tanh())).real]

    assert_same(cluster, program)


def test_views_of_a_complex_tensor_are_written_each_for_itself(cluster):
    def program(leaves):
        z = torch.complex(leaves["x"].tanh(), leaves["y"])
        return [call("worker1", write_into_the_second, z.imag, torch.view_as_real(z), z.real)]

    assert_same(cluster, program)


def test_overlapping_results_are_written_each_for_itself(cluster):
    def program(leaves):
        one, other, wide = call("worker1", overlapping_results, leaves["x"].tanh())
        other.mul_(leaves["v"][1:])
        wide[0].mul_(3)
        one.add_(leaves["y"])
        return [one * 2, other * 3, wide * leaves["v"].view(3, 1)]

    assert_same(cluster, program)
