"""One component in torch's engine; the steps are those of the drawing in `engine.py`."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd import engine
from lockstitch.autograd.context import DistAutogradContext
from lockstitch.autograd.engine import ComponentRun
from lockstitch.autograd.graph import Entry, find_components
from lockstitch.autograd.stitch import RECEIVE_NODE, stitch_receive, stitch_send
from lockstitch.ids import GlobalId

WAIT_SECONDS = 60


class GradientSink:
    def __init__(self):
        self.emitted = []

    def emit(self, receive, gradients):
        self.emitted.append((receive.message.counter, gradients))


def message(number):
    return GlobalId(0, 0, number)


def send(number, *tensors):
    aliases = stitch_send(tensors)
    edges = tuple(get_gradient_edge(tensor) for tensor in tensors)
    return Entry(message(number), edges, aliases, order=number)


def roots(*tensors):
    return Entry(None, tuple(get_gradient_edge(tensor) for tensor in tensors))


def received(number):
    return stitch_receive(GlobalId(1, 0, number), [torch.ones(2)])[0]


def prepare(*entries, retain_graph=False):
    (component,) = find_components(list(entries), RECEIVE_NODE)
    context = DistAutogradContext(1, None)
    sink = GradientSink()
    return ComponentRun(component, context, retain_graph, sink), context, sink


def leaf():
    return torch.ones(2, requires_grad=True)


ONES = (torch.ones(2),)


def test_step_1_gradients_become_roots_where_they_are_defined():
    x, y = leaf(), leaf()
    h = x * y
    run, context, _ = prepare(send(2, h * 2, y * 3), send(1, h * 5))
    run.run({message(2): (None, torch.ones(2)), message(1): ONES})
    assert context.gradients[x].tolist() == [5.0, 5.0]
    assert context.gradients[y].tolist() == [8.0, 8.0]


def test_step_2_a_component_runs_each_node_once_on_the_sum():
    x = leaf()
    h = x * 2
    sums = []
    h.register_hook(lambda gradient: sums.append(gradient.clone()))
    run, context, _ = prepare(send(2, h), send(1, h))
    run.run({message(2): ONES, message(1): (torch.full((2,), 3.0),)})
    assert [each.tolist() for each in sums] == [[4.0, 4.0]]
    assert context.gradients[x].tolist() == [8.0, 8.0]


def test_step_3_receives_hand_their_gradients_out_during_the_run():
    r = received(9)
    run, _, sink = prepare(send(1, r * 4))
    run.run({message(1): ONES})
    ((number, (gradient,)),) = sink.emitted
    assert number == 9
    assert gradient.tolist() == [4.0, 4.0]
    assert r.grad_fn.receive.sink is None


def test_step_4_leaf_gradients_go_to_the_context_and_not_to_grad():
    x = leaf()
    run, context, _ = prepare(send(1, x * 2))
    run.run({message(1): ONES})
    assert x.grad is None
    assert context.gradients[x].tolist() == [2.0, 2.0]


def test_null_tokens_alone_run_nothing():
    x = leaf()
    h = x * 2
    h.register_hook(lambda gradient: pytest.fail("ran"))
    run, context, _ = prepare(send(1, h))
    run.run({message(1): None})
    assert context.gradients == {}


def test_leaves_that_were_sent_need_no_engine(monkeypatch):
    monkeypatch.setattr(engine, "run_engine", lambda *_: pytest.fail("ran"))
    x, y = leaf(), leaf()
    run, context, _ = prepare(send(1, x, y))
    run.run({message(1): (torch.full((2,), 3.0), torch.full((2,), 4.0))})
    assert context.gradients[x].tolist() == [3.0, 3.0]
    assert context.gradients[y].tolist() == [4.0, 4.0]


def test_a_leaf_that_was_sent_twice_or_has_a_hook_goes_by_the_engine():
    x, y = leaf(), leaf()
    y.register_hook(lambda gradient: gradient * 10)
    run, context, _ = prepare(send(1, x, x, y))
    run.run({message(1): (torch.full((2,), 3.0), torch.full((2,), 4.0), torch.ones(2))})
    assert context.gradients[x].tolist() == [7.0, 7.0]
    assert context.gradients[y].tolist() == [10.0, 10.0]


def test_a_gradient_that_passes_straight_to_a_leaf_is_stolen():
    x = leaf()
    run, context, _ = prepare(send(1, x))
    arrived = {message(1): (torch.ones(2),)}
    address = arrived[message(1)][0].data_ptr()
    run.run(arrived)
    assert context.gradients[x].data_ptr() == address


def test_the_graph_is_freed_unless_it_is_retained():
    x = leaf()
    h = x.sin()
    entry = send(1, h)
    for retain_graph in (True, False):
        run, _, _ = prepare(entry, retain_graph=retain_graph)
        run.run({message(1): ONES})
    run, _, _ = prepare(entry)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        run.run({message(1): ONES})


def test_hooks_of_an_accumulating_node_run_once_with_the_gradient():
    x = leaf()
    y = x * 2
    seen = []
    y.grad_fn.next_functions[0][0].register_hook(lambda inputs, outputs: seen.append(outputs))
    run, context, _ = prepare(send(1, y))
    run.run({message(1): ONES})
    ((gradient,),) = seen
    assert gradient.tolist() == [2.0, 2.0]
    assert x in context.gradients


def test_an_error_leaves_no_outlet_behind():
    r = received(9)
    h = r * 2

    def fail(_gradient):
        raise ValueError("own")

    h.register_hook(fail)
    run, _, _ = prepare(send(1, h))
    with pytest.raises(ValueError, match="own"):
        run.run({message(1): ONES})
    assert r.grad_fn.receive.sink is None


# ---------------------------------------------------------------- blocking


class Arrivals:
    """What a blocking run waits for; tells what it waits for now."""

    def __init__(self, **gradients):
        self.asked = []
        self.gradients = {message(int(name[1:])): value for name, value in gradients.items()}
        self.there = threading.Event()

    def wait(self, entry):
        self.asked.append(entry.message.counter)
        assert self.there.wait(WAIT_SECONDS)
        return self.gradients[entry.message]


def test_a_blocking_run_waits_inside_for_what_is_missing():
    x = leaf()
    h = x * 2
    y = h * received(9)
    entry = send(1, h)
    run, context, sink = prepare(roots(y), entry)
    arrivals = Arrivals(s1=(torch.full((2,), 10.0),))
    thread = threading.Thread(
        target=run.run_blocking, args=({None: ONES}, [(entry, [0])], arrivals.wait)
    )
    thread.start()
    arrivals.there.set()
    thread.join(WAIT_SECONDS)
    assert [number for number, _ in sink.emitted] == [9]
    assert context.gradients[x].tolist() == [22.0, 22.0]


def test_everything_else_runs_before_a_wait_even_nodes_of_a_fresh_thread():
    x = leaf()
    h = x * 2
    made = []
    # A fresh thread counts its nodes from zero: below the aliases of the sends.
    thread = threading.Thread(target=lambda: made.append(h.sin() * received(9)))
    thread.start()
    thread.join()
    entry = send(3, h)
    run, _, sink = prepare(roots(made[0]), entry)
    arrivals = Arrivals(s3=ONES)

    def wait(entry):
        assert [number for number, _ in sink.emitted] == [9]
        arrivals.there.set()
        return arrivals.wait(entry)

    run.run_blocking({None: ONES}, [(entry, [0])], wait)
    assert arrivals.asked == [3]


def test_the_newest_send_is_waited_for_first():
    x = leaf()
    h = x * 2
    y = h * received(9)
    entries = [send(3, h), send(2, h), send(1, h)]
    run, context, _ = prepare(roots(y), *entries)
    arrivals = Arrivals(s1=ONES, s2=ONES, s3=ONES)
    arrivals.there.set()
    run.run_blocking({None: ONES}, [(entry, [0]) for entry in reversed(entries)], arrivals.wait)
    assert arrivals.asked == [3, 2, 1]
    assert context.gradients[x].tolist() == [8.0, 8.0]


def test_a_missing_root_that_does_not_come_adds_nothing():
    x = leaf()
    h = x * 2
    entry = send(1, h)
    run, context, _ = prepare(roots(h * received(9)), entry)
    arrivals = Arrivals(s1=None)
    arrivals.there.set()
    run.run_blocking({None: ONES}, [(entry, [0])], arrivals.wait)
    assert context.gradients[x].tolist() == [2.0, 2.0]


def test_a_sparse_gradient_is_made_dense():
    x = torch.ones(2, 2, requires_grad=True)
    h = x * 2
    entry = send(1, h)
    r = stitch_receive(GlobalId(1, 0, 9), [torch.ones(2, 2)])[0]
    run, context, _ = prepare(roots(h * r), entry)
    arrivals = Arrivals(s1=(torch.eye(2).to_sparse(),))
    arrivals.there.set()
    run.run_blocking({None: (torch.ones(2, 2),)}, [(entry, [0])], arrivals.wait)
    assert context.gradients[x].tolist() == [[4.0, 2.0], [2.0, 4.0]]


def test_hooks_of_a_blocking_run_are_gone_afterwards():
    x = leaf()
    h = x * 2
    entry = send(1, h)
    run, _, _ = prepare(roots(h * received(9)), entry, retain_graph=True)

    def fail(_entry):
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run.run_blocking({None: ONES}, [(entry, [0])], fail)
    run.run({None: ONES, message(1): ONES})


def test_nothing_awaited_is_an_ordinary_run():
    x = leaf()
    run, context, _ = prepare(send(1, x * 2))
    run.run_blocking({message(1): ONES}, [], pytest.fail)
    assert context.gradients[x].tolist() == [2.0, 2.0]
