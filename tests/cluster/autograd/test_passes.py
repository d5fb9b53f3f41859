"""Passes after one another and at once; what goes wrong in them, and that nothing stays behind."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.autograd.context import set_current_context
from lockstitch.autograd.service import AutogradService
from lockstitch.errors import DistAutogradError, PeerDiedError
from tests.cluster.autograd.comparison import run_in_threads

WEIGHT = torch.ones(3, dtype=torch.float64, requires_grad=True)


def times_weight(tensor):
    return tensor * WEIGHT


def leaf(value=2.0):
    return torch.full((3,), value, dtype=torch.float64, requires_grad=True)


class Breaks(torch.autograd.Function):
    """Fails in backward while `fails` is set; reports that it was reached."""

    fails = True
    error: type[Exception] = ValueError
    reached = threading.Event()

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Breaks.fails:
            Breaks.reached.set()
            raise Breaks.error("a broken backward")
        return gradient


class SaysNothingError(Exception):
    """As one whose `__str__` needs what its constructor did not set."""

    def __str__(self):
        return self.what

    __repr__ = __str__


def break_in_backward(tensor):
    return Breaks.apply(tensor) * 2


def pass_on_and_break(tensor):
    return rpc.rpc_sync("worker2", break_in_backward, args=(tensor * 2,))


@pytest.fixture
def breaking():
    Breaks.fails = True
    Breaks.reached.clear()
    return Breaks


def blocking_threads():
    return [each for each in threading.enumerate() if "backward" in each.name]


def wait_until_no_thread_is_blocked():
    for thread in blocking_threads():
        thread.join(60)
    assert blocking_threads() == []


def test_a_retained_graph_doubles_and_a_freed_one_raises_here(cluster):
    x = leaf()
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", times_weight, args=(x.sin(),)).sum()
        autograd.backward(context_id, [loss], retain_graph=True)
        once = autograd.get_gradients(context_id)[x].clone()
        autograd.backward(context_id, [loss])
        torch.testing.assert_close(autograd.get_gradients(context_id)[x], 2 * once)
        with pytest.raises(DistAutogradError, match="Error on Node [0-9]: Trying to backward"):
            autograd.backward(context_id, [loss])


def test_an_error_in_a_remote_backward_arrives_through_several_hops(cluster, breaking):
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", pass_on_and_break, args=(leaf(),)).sum()
        for _ in range(5):
            with pytest.raises(DistAutogradError, match="Error on Node 2: a broken") as caught:
                autograd.backward(context_id, [loss], retain_graph=True)
            assert isinstance(caught.value.__cause__, ValueError)
        breaking.fails = False
        for _ in range(5):
            autograd.backward(context_id, [loss], retain_graph=True)


def test_an_error_while_a_blocking_run_waits_frees_every_thread(cluster, breaking):
    with cluster[0].active(), autograd.context() as context_id:
        h = leaf().sin()
        y = rpc.rpc_sync("worker1", pass_on_and_break, args=(h,))
        with pytest.raises(DistAutogradError, match="Error on Node 2: a broken backward"):
            autograd.backward(context_id, [(y * h).sum()])
    wait_until_no_thread_is_blocked()
    assert all(worker.service(AutogradService).running_passes == 0 for worker in cluster)


def grow(tensor):
    threads = []
    tensor.register_hook(lambda gradient: threads.append(threading.current_thread().name))
    ran_in.append(threads)
    for _ in range(6_000):
        tensor = tensor * 1.0001
    return tensor


ran_in = []


def test_a_long_graph_runs_in_a_thread_of_its_own_to_the_same_result(cluster):
    x = leaf()
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", grow, args=(x * 1,)).sum()
        autograd.backward(context_id, [loss])
        gradient = autograd.get_gradients(context_id)[x]
    assert ran_in.pop() == ["worker1-backward"]
    torch.testing.assert_close(gradient, torch.full_like(x, 1.0001**6_000))
    wait_until_no_thread_is_blocked()


def call_back_and_break(tensor):
    there = rpc.rpc_sync("worker0", pass_on_and_break, args=(tensor.sin(),))
    return there * tensor


def test_an_error_below_nested_blocking_runs_frees_every_thread(cluster, breaking):
    with cluster[0].active(), autograd.context() as context_id:
        h = leaf().sin()
        y = rpc.rpc_sync("worker1", call_back_and_break, args=(h,))
        with pytest.raises(DistAutogradError, match="Error on Node 2: a broken backward"):
            autograd.backward(context_id, [(y * h).sum()])
    wait_until_no_thread_is_blocked()


def test_an_error_in_the_roots_own_graph(cluster, breaking):
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", times_weight, args=(leaf(),))
        with pytest.raises(DistAutogradError, match="Error on Node 0: a broken backward"):
            autograd.backward(context_id, [Breaks.apply(y).sum()])


@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_without_a_text_keeps_nobody_waiting(cluster, breaking, monkeypatch, rank):
    monkeypatch.setattr(breaking, "error", SaysNothingError)
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", pass_on_and_break if rank else times_weight, args=(leaf(),))
        loss = y if rank else Breaks.apply(y)
        with pytest.raises(DistAutogradError, match=f"Error on Node {rank}: .its text cannot be"):
            autograd.backward(context_id, [loss.sum()])


def test_a_worker_that_died_before_the_pass(cluster):
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", times_weight, args=(leaf(),))
        cluster.kill("worker1")
        with pytest.raises(PeerDiedError):
            autograd.backward(context_id, [y.sum()])


class Waits(torch.autograd.Function):
    """Stops in backward until `go`; tells by `reached`."""

    reached = threading.Event()
    go = threading.Event()

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        Waits.reached.set()
        assert Waits.go.wait(60)
        return gradient


def wait_in_backward(tensor):
    return Waits.apply(tensor)


def pass_on_and_wait(tensor):
    return rpc.rpc_sync("worker2", wait_in_backward, args=(tensor * 2,))


@pytest.fixture
def waiting():
    Waits.reached.clear()
    Waits.go.clear()
    yield Waits
    Waits.go.set()


@pytest.mark.parametrize("dies", ["worker1", "worker2"])
def test_a_worker_that_dies_during_the_pass(cluster, waiting, dies):
    errors = []

    def train():
        with cluster[0].active(), autograd.context() as context_id:
            h = leaf().sin()
            y = rpc.rpc_sync("worker1", pass_on_and_wait, args=(h,))
            try:
                autograd.backward(context_id, [(y * h).sum()])
            except RuntimeError as error:
                errors.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    assert waiting.reached.wait(60)
    cluster.kill(dies)
    trainer.join(60)
    assert not trainer.is_alive()
    assert isinstance(errors[0], PeerDiedError)


def test_a_context_that_is_released_during_its_pass(cluster, waiting):
    errors = []
    opened = []

    def train():
        with cluster[0].active():
            context = autograd._new_context()
            opened.append(context)
            h = leaf().sin()
            y = rpc.rpc_sync("worker1", pass_on_and_wait, args=(h,))
            try:
                autograd.backward(context._context_id(), [(y * h).sum()])
            except RuntimeError as error:
                errors.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    assert waiting.reached.wait(60)
    with cluster[0].active():
        autograd._release_context(opened[0]._context_id())
    trainer.join(60)
    assert not trainer.is_alive()
    assert "Could not find autograd context with id" in str(errors[0])


def test_unrelated_calls_in_flight_during_a_pass(cluster):
    stop = threading.Event()

    def chatter(context_id):
        service = cluster[0].service(AutogradService)
        set_current_context(service.find_context(context_id))
        with cluster[0].active():
            while not stop.is_set():
                rpc.rpc_sync("worker1", times_weight, args=(x.sin(),))

    x = leaf()
    with cluster[0].active(), autograd.context() as context_id:
        h = x.sin()
        loss = (rpc.rpc_sync("worker1", times_weight, args=(h,)) * h).sum()
        talker = threading.Thread(target=chatter, args=(context_id,))
        talker.start()
        for _ in range(20):
            autograd.backward(context_id, [loss], retain_graph=True)
        stop.set()
        talker.join()
        h = x.detach().requires_grad_()
        (h.sin() ** 2).sum().backward()
        torch.testing.assert_close(autograd.get_gradients(context_id)[x], 20 * h.grad)


def test_fifty_contexts_at_once_on_one_parameter(cluster):
    parameter = leaf(1.5)

    def train(number):
        with cluster[0].active(), autograd.context() as context_id:
            h = parameter * number
            y = rpc.rpc_sync(f"worker{1 + number % 2}", times_weight, args=(h,))
            autograd.backward(context_id, [(y + h).sum()])
            gradient = autograd.get_gradients(context_id)[parameter]
            torch.testing.assert_close(gradient, torch.full_like(gradient, 2.0 * number))

    run_in_threads([partial(train, number) for number in range(1, 51)])


def test_twenty_threads_hammer_one_worker(cluster):
    def work(rank):
        with cluster[rank].active(), autograd.context() as context_id:
            one, other = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3)
            t3 = rpc.rpc_sync("worker0", torch.add, args=(one, other))
            t4 = rpc.rpc_sync("worker0", torch.mul, args=(one, t3))
            t5 = rpc.rpc_sync("worker0", torch.matmul, args=(t3, t4))
            autograd.backward(context_id, [(t4 + t5).sum()])
            assert one in autograd.get_gradients(context_id)

    run_in_threads([partial(work, 1 + number % 2) for number in range(20)])


def test_passes_of_one_context_from_several_threads_follow_one_another(cluster):
    x = leaf()
    with cluster[0].active(), autograd.context() as context_id:
        h = x.sin()
        loss = (rpc.rpc_sync("worker1", times_weight, args=(h,)) * h).sum()

        def run():
            with cluster[0].active():
                for _ in range(10):
                    autograd.backward(context_id, [loss], retain_graph=True)

        run_in_threads([run] * 4)
        autograd.backward(context_id, [loss])
        h = x.detach().requires_grad_()
        (h.sin() ** 2).sum().backward()
        torch.testing.assert_close(autograd.get_gradients(context_id)[x], 41 * h.grad)


def test_a_fast_pass_whose_assumption_is_false_names_the_stitch(cluster):
    with cluster[0].active(), autograd.context() as context_id:
        h = leaf().sin()
        rpc.rpc_sync("worker1", times_weight, args=(h,))
        with pytest.raises(DistAutogradError, match=r"stitches: number 0 of rank 0\. Use mode"):
            autograd.backward(context_id, [h.sum()], mode="fast")
    wait_until_no_thread_is_blocked()


def test_a_pass_over_two_workers_needs_no_connection_back(cluster):
    one, other = cluster[0], cluster[1]
    with one.active(), autograd.context() as context:
        h = leaf() * 3
        for _ in range(4):
            h = rpc.rpc_sync(other.name, times_weight, args=(h,))
        autograd.backward(context, [h.sum()])
        reached = [channel.peer for channel in other.agent.peers.channels()]
    assert one.info not in reached, "gradients and reports went back where the calls came from"
    assert all(channel.listeners == 0 for channel in one.agent.peers.channels())


def test_after_a_failed_pass_nobody_listens_for_long(cluster):
    Breaks.fails = True
    one, other = cluster[0], cluster[1]
    with one.active(), autograd.context() as context:
        result = rpc.rpc_sync(other.name, break_in_backward, args=(leaf() * 3,))
        with pytest.raises(DistAutogradError, match="a broken backward"):
            autograd.backward(context, [result.sum()])
        assert autograd.get_gradients(context) == {}
    with one.active():
        product = rpc.rpc_sync(other.name, times_weight, args=(leaf(),))
    assert torch.equal(product, leaf() * WEIGHT)
