"""What a context keeps alive and for how long, and the rule that its gradients share no memory."""

from __future__ import annotations

import gc
import itertools
import weakref

import torch

from lockstitch import autograd, rpc
from lockstitch.autograd.service import AutogradService
from tests.cluster.autograd.comparison import wait_until
from tests.unit.wire.interrupts import interrupted, strike_everywhere

WEIGHT = torch.ones(3, requires_grad=True)
OTHER = torch.ones(3, requires_grad=True)
SEEN: list[weakref.ref] = []


def times_weight(tensor):
    return tensor * WEIGHT


def through_a_large_factor(tensor):
    factor = torch.full((3,), 2.0)
    SEEN.append(weakref.ref(factor))
    return tensor * factor


def nested(tensor):
    return rpc.rpc_sync("worker2", times_weight, args=(tensor,))


def sum_of_both(tensor):
    return WEIGHT + OTHER + tensor


def plain_number():
    return 3


def nested_plain_number():
    return rpc.rpc_sync("worker2", plain_number)


def leaf():
    return torch.ones(3, requires_grad=True)


def contexts_of(cluster, name):
    return cluster[name].service(AutogradService).contexts


def test_a_send_keeps_the_graph_but_not_the_tensor(cluster):
    with cluster[0].active(), autograd.context() as context_id:
        x = leaf()
        h = x.sin()
        y = rpc.rpc_sync("worker1", times_weight, args=(h,))
        sent = weakref.ref(h)
        del h
        assert sent() is None
        autograd.backward(context_id, [y.sum()])
        torch.testing.assert_close(autograd.get_gradients(context_id)[x], x.detach().cos())


def test_saved_tensors_go_with_the_pass_unless_the_graph_is_retained(cluster):
    SEEN.clear()
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", through_a_large_factor, args=(leaf(),))
        (factor,) = SEEN
        autograd.backward(context_id, [y.sum()], retain_graph=True)
        assert factor() is not None
        autograd.backward(context_id, [y.sum()])
        assert wait_until(lambda: factor() is None)


def test_leaving_a_context_releases_it_everywhere(cluster):
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", nested, args=(leaf(),))
        autograd.backward(context_id, [y.sum()])
        assert [len(contexts_of(cluster, name)) for name in cluster.names] == [1, 1, 1]
        contexts = [weakref.ref(contexts_of(cluster, name)[0]) for name in cluster.names]
        graph = weakref.ref(y.grad_fn)
        del y
    assert wait_until(lambda: not any(contexts_of(cluster, name) for name in cluster.names))

    def all_gone():
        gc.collect()
        return graph() is None and all(context() is None for context in contexts)

    assert wait_until(all_gone)


def test_calls_without_tensors_join_the_context_and_are_released_too(cluster):
    with cluster[0].active(), autograd.context():
        rpc.rpc_sync("worker1", nested_plain_number)
        assert [len(contexts_of(cluster, name)) for name in cluster.names] == [1, 1, 1]
    assert wait_until(lambda: not any(contexts_of(cluster, name) for name in cluster.names))


LEAVING = tuple(f"lockstitch.autograd.{name}" for name in ("service", "contexts", "releases"))


def test_a_context_whose_end_is_interrupted_is_released_all_the_same(cluster):
    def attempt(number):
        with cluster[0].active():
            service = cluster[0].service(AutogradService)
            context = service.new_context()
            rpc.rpc_sync("worker1", nested_plain_number)
            # The first point is the beginning of the function, at which nobody has heard of it.
            with interrupted(number + 1, *LEAVING) as striker:
                service.leave_context(context)
            names = cluster.names
            assert wait_until(lambda: not any(contexts_of(cluster, name) for name in names))
            return striker

    assert strike_everywhere(attempt) > 5


def test_the_contexts_of_a_dead_worker_are_released(cluster):
    with cluster[0].active(), autograd.context():
        rpc.rpc_sync("worker1", nested, args=(leaf(),))
        cluster.kill("worker0")
        assert wait_until(lambda: not contexts_of(cluster, "worker1"))
        assert wait_until(lambda: not contexts_of(cluster, "worker2"))


def test_gradients_of_a_context_share_memory_with_no_other(cluster):
    with cluster[0].active(), autograd.context() as context_id:
        x, z = leaf(), leaf()
        kept = []
        h = x + z
        h.register_hook(kept.append)
        y = rpc.rpc_sync("worker1", sum_of_both, args=(h,))
        autograd.backward(context_id, [y.sum() + h.sum()])
        gradients = list(autograd.get_gradients(context_id).values())
        with cluster[1].active():
            gradients += autograd.get_gradients(context_id).values()
        assert len(gradients) == 4
        before = [gradient.clone() for gradient in (*gradients, *kept)]
        for changed, gradient in enumerate(gradients):
            gradient.add_(1)
            for index, other in enumerate((*gradients, *kept)):
                expected = before[index] + (1 if index <= changed else 0)
                assert torch.equal(other, expected)


def test_gradients_do_not_leak_between_contexts(cluster):
    x = leaf()
    with cluster[0].active():
        for _ in range(2):
            with autograd.context() as context_id:
                y = rpc.rpc_sync("worker1", times_weight, args=(x,))
                autograd.backward(context_id, [y.sum()])
                assert torch.equal(autograd.get_gradients(context_id)[x], torch.ones(3))


def test_context_ids_name_their_worker_and_never_repeat(cluster):
    ids = []
    for worker in cluster:
        with worker.active():
            for _ in range(3):
                with autograd.context() as context_id:
                    ids.append(context_id)
                    assert context_id >> 48 == worker.id.rank
    assert all(one != other for one, other in itertools.combinations(ids, 2))


def test_releases_are_heard_of_although_nobody_reads_the_answers(cluster):
    with cluster[0].active(), autograd.context():
        rpc.rpc_sync(cluster[1].name, torch.add, args=(torch.ones(2, requires_grad=True), 1))
    releases = cluster[0].service(AutogradService)._releases
    assert wait_until(lambda: len(releases) == 0)
