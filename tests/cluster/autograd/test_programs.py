"""Programs whose backward pass is not a plain chain: all must equal one process."""

from __future__ import annotations

import torch

from lockstitch import autograd, rpc
from lockstitch.autograd.initiator import Initiator
from tests.cluster.autograd.comparison import OWNED, Way, assert_same, call, make_leaves

SMART_ONLY = ("smart",)


def double(tensor):
    return tensor * 2


def times_w(tensor):
    return tensor * OWNED["w"]


def times_v(tensor):
    return (tensor * OWNED["v"]).sin()


def pair(tensor):
    return tensor * 2, tensor * OWNED["w"]


def first_of(one, _other):
    return one * 3


def nothing_of(tensor):
    return tensor.detach() * 2


def combine(one, other):
    return one * other + OWNED["w"]


def call_back(tensor):
    return call("worker0", times_v, tensor * 2) * tensor


def hand_on(tensor):
    return call("worker2", times_v, tensor)


def keep(tensor):
    return tensor


def test_one_call(cluster):
    assert_same(cluster, lambda leaves: [call("worker1", times_w, leaves["x"] * 2)])


def test_a_sent_tensor_is_used_here_too(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [h.sin() + call("worker1", times_w, h)]

    assert_same(cluster, program)


def test_a_call_whose_result_is_unused(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        call("worker1", times_w, h)
        return [h.sin()]

    assert_same(cluster, program, SMART_ONLY)


def test_a_call_that_uses_nothing_of_its_argument(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [h.sin() + call("worker1", nothing_of, h)]

    assert_same(cluster, program, SMART_ONLY)


def test_an_unused_tensor_of_a_used_message(cluster):
    def program(leaves):
        h, k = leaves["x"].tanh(), leaves["y"].tanh()
        used, _unused = call("worker1", pair, h)
        return [used + k.sin() + call("worker1", first_of, h, k)]

    assert_same(cluster, program, SMART_ONLY)


def test_many_calls_that_share_one_tensor(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [sum(call("worker1", times_w, h) for _ in range(20))]

    assert_same(cluster, program)


def test_many_calls_that_share_one_tensor_and_half_are_unused(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [sum([call("worker1", times_w, h) for _ in range(20)][::2])]

    assert_same(cluster, program, SMART_ONLY)


def test_stacked_calls_each_beside_a_local_path(cluster):
    def program(leaves):
        h = leaves["x"]
        for _ in range(12):
            h = h * leaves["y"] + call("worker1", times_w, h)
        return [h]

    assert_same(cluster, program)


def test_a_recurrent_state_on_both_sides_over_thirty_steps(cluster):
    def program(leaves):
        here, there = leaves["x"], leaves["y"]
        for _ in range(30):
            here = (here * leaves["v"] + there).tanh()
            there = call("worker1", combine, here, there).tanh()
        return [here, there]

    assert_same(cluster, program)


def test_ping_pong_needs_no_question_who_takes_part(cluster, monkeypatch):
    def program(leaves):
        h = leaves["x"]
        for hop in range(20):
            h = call(f"worker{1 + hop % 2}", times_w, h * 1.1)
        return [h]

    def must_not_ask(_initiator):
        raise AssertionError("asked who takes part")

    monkeypatch.setattr(Initiator, "_ask_reach", must_not_ask)
    assert_same(cluster, program)


def test_a_callee_that_calls_back(cluster):
    assert_same(cluster, lambda leaves: [call("worker1", call_back, leaves["x"].tanh())])


def test_a_callee_that_calls_back_with_what_the_caller_uses_too(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [h * call("worker1", call_back, h)]

    assert_same(cluster, program)


def test_calls_to_oneself(cluster):
    def program(leaves):
        h = call("worker0", times_w, leaves["x"].tanh())
        return [call("worker0", times_v, h) + h]

    assert_same(cluster, program)


def test_a_received_tensor_that_is_handed_on_untouched(cluster):
    assert_same(cluster, lambda leaves: [call("worker1", hand_on, leaves["x"].tanh())])


def test_a_result_that_is_the_argument(cluster):
    assert_same(cluster, lambda leaves: [call("worker1", keep, leaves["x"])])


def test_a_leaf_that_is_sent(cluster):
    assert_same(
        cluster,
        lambda leaves: [call("worker1", combine, leaves["x"], leaves["y"]) + leaves["x"]],
    )


def test_the_same_tensor_twice_in_one_message(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [call("worker1", combine, h, h)]

    assert_same(cluster, program)


def test_the_same_tensor_in_several_messages(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        return [call("worker1", times_w, h) * call("worker2", times_v, h)]

    assert_same(cluster, program)


def test_several_roots_on_paths_that_meet(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        y = call("worker1", times_w, h)
        return [y.sin(), (y * h).cos(), h * 1, leaves["y"] * 2]

    assert_same(cluster, program)


def test_a_root_that_is_a_received_tensor(cluster):
    with cluster[0].active(), autograd.context() as context_id:
        leaf = make_leaves()["x"]
        loss = rpc.rpc_sync("worker1", torch.sum, args=(leaf * 2,))
        autograd.backward(context_id, [loss])
        gradient = autograd.get_gradients(context_id)[leaf]
    assert gradient.tolist() == [2.0, 2.0, 2.0]


def test_fetching_a_reference_several_times_and_using_some(cluster):
    def program(leaves):
        h = leaves["x"].tanh()
        if Way.is_remote:
            reference = rpc.remote("worker1", times_w, args=(h,))
            fetched = [reference.to_here() for _ in range(5)]
        else:
            value = call("", times_w, h)
            fetched = [value.clone() for _ in range(5)]
        return [fetched[1].sin() * fetched[3]]

    assert_same(cluster, program, SMART_ONLY)


def test_hooks_see_the_whole_sum_once(cluster):
    seen = []

    def watch(leaves):
        seen.clear()

        def hook(gradient):
            seen.append(gradient.clone())
            return gradient * 10 + gradient * gradient

        leaves["x"].register_hook(hook)

    def program(leaves):
        results = [call(f"worker{1 + n % 2}", times_w, leaves["x"]) for n in range(4)]
        return [sum(results[:3]) + leaves["x"]]

    assert_same(cluster, program, SMART_ONLY, prepare=watch)
    assert len(seen) == 1


def test_hooks_on_tensors_between(cluster):
    calls = []

    def program(leaves):
        h = leaves["x"].tanh()
        h.register_hook(lambda gradient: calls.append(1) or gradient * gradient)
        y = call("worker1", times_w, h)
        y.register_hook(lambda gradient: calls.append(2) or gradient * gradient)
        return [y.sin() + h.sin()]

    assert_same(cluster, program)
    assert sorted(calls) == [1, 1, 1, 2, 2, 2]
