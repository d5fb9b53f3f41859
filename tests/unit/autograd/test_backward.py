"""One worker's part of a pass, fed by hand: gradients in, tasks out."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.backward import BackwardPass
from lockstitch.autograd.conductor import PassOptions
from lockstitch.autograd.context import DistAutogradContext
from lockstitch.autograd.graph import Entry
from lockstitch.autograd.listening import Listening
from lockstitch.autograd.stitch import stitch_receive, stitch_send
from lockstitch.autograd.termination import PassStatus
from lockstitch.errors import DistAutogradError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.wire.messages import Gradient, Payload
from lockstitch.wire.messages.backward import FAST
from tests.unit.autograd.post_office import Clerk

ME, PEER = WorkerId(1, 0), WorkerId(0, 0)
PASS = GlobalId(*PEER, 4)
ONES = (torch.ones(2),)


def never(*_arguments):
    """These passes create no graph."""
    raise AssertionError


class Conductor:
    """Keeps what it is told."""

    def __init__(self, is_distant, clerk):
        self.is_distant = is_distant
        self.clerk = clerk
        self.listening = Listening(clerk)
        self.reports = []
        self.asked = 0
        self.handed = []
        self.errors = []
        self.waits = []
        self.waited = threading.Event()

    def report(self, emitted, consumed, roots_ran):
        self.reports.append((numbers(emitted), numbers(consumed), roots_ran))

    def need_parts(self):
        self.asked += 1

    def sleep(self, sleeper, *, knows_parts):
        return self.listening.sleep(sleeper, 0.001 if not self.waited.is_set() else None)

    def listens_to(self, worker):
        return False

    def begin_to_wait(self):
        self.waits.append("begun")

    def end_wait(self):
        self.waits.append("over")

    def end(self, failed):
        self.waits.append("failed" if failed else "ended")

    def send(self, worker, message):
        self.clerk.send(worker, message)

    def waited_too_long(self):
        self.waited.set()

    def hand_over(self, task):
        self.handed.append(task)

    def fail(self, error):
        self.errors.append(error)


def run_in_thread(task):
    thread = threading.Thread(target=task, name="spawned")
    thread.start()
    return thread


def spawned_threads():
    return [each for each in threading.enumerate() if each.name == "spawned"]


def join_spawned():
    for thread in spawned_threads():
        thread.join(10)


def numbers(messages):
    return [message.counter for message in messages]


class Bench:
    """A context with sends and receives, a pass over it, and what the pass sent."""

    def __init__(self, is_distant=True, fast=False):
        self.sent = []
        office = SimpleNamespace(
            dead=set(),
            dropped=lambda to, message: True,
            spawn=run_in_thread,
        )
        clerk = Clerk(office, ME)
        worker = SimpleNamespace(id=ME, name="worker1", agent=clerk, active=clerk.blocked)
        self.sent = clerk.sent
        self.conductor = Conductor(is_distant, clerk)
        self.context = DistAutogradContext(7, None)
        options = PassOptions(PASS, FAST * fast)
        self.backward = BackwardPass(worker, self.context, options, self.conductor, never)

    def send(self, number, *tensors):
        self.context.add_send(GlobalId(*ME, number), PEER, stitch_send(tensors))

    def arrive(self, number, gradients=ONES, emitted=(), consumed=()):
        message = Gradient(
            7,
            PASS,
            0,
            False,
            GlobalId(*ME, number),
            tuple(GlobalId(*ME, each) for each in emitted),
            tuple(GlobalId(*ME, each) for each in consumed),
            None,
            Payload(0, b"", gradients or ()),
        )
        return self.backward.receive(message)

    def run(self, *arguments, **options):
        task = self.arrive(*arguments, **options)
        if task is not None:
            task()

    def gradients_sent(self):
        return [
            (message.message.counter, numbers(message.emitted), numbers(message.consumed))
            for message in self.sent
        ]


def received(number):
    return stitch_receive(GlobalId(*PEER, number), [torch.ones(2)])[0]


def leaf():
    return torch.ones(2, requires_grad=True)


def test_a_single_entry_runs_when_its_gradient_arrives():
    bench, x = Bench(), leaf()
    bench.send(1, x * 2)
    bench.run(1)
    assert bench.context.gradients[x].tolist() == [2.0, 2.0]
    assert bench.conductor.reports == [([], [1], False)]


def test_step_5_the_report_rides_on_the_last_gradient():
    bench = Bench()
    bench.send(1, received(5) * received(6))
    bench.run(1)
    first, last = bench.gradients_sent()
    assert first == (first[0], [], [])
    assert sorted([first[0], last[0]]) == [5, 6]
    assert (sorted(last[1]), last[2]) == ([5, 6], [1])
    assert bench.conductor.reports == []


def test_a_report_that_came_along_goes_on_with_its_own():
    bench = Bench()
    bench.send(1, received(5) * 2)
    bench.run(1, emitted=(1,), consumed=(3,))
    # 1 was emitted there and is consumed here: nobody needs to know.
    assert bench.gradients_sent() == [(5, [5], [3])]


def test_on_the_initiator_the_report_goes_straight():
    bench = Bench(is_distant=False)
    bench.send(1, received(5) * 2)
    bench.run(1)
    assert bench.gradients_sent() == [(5, [], [])]
    assert bench.conductor.reports == [([5], [1], False)]


def test_a_null_token_goes_on_as_one():
    bench = Bench()
    bench.send(1, received(5) * 2)
    bench.run(1, gradients=None)
    assert bench.gradients_sent() == [(5, [5], [1])]
    assert bench.sent[0].body.items == ()


def test_a_receive_that_no_gradient_reaches_sends_a_null_token():
    bench = Bench()
    bench.send(1, received(5) * 2, received(6) * 2)
    bench.run(1, gradients=(None, torch.ones(2)))
    assert bench.gradients_sent() == [(6, [], []), (5, [6, 5], [1])]
    assert [len(message.body.items) for message in bench.sent] == [1, 0]


def test_gradients_that_come_during_the_walk_wait_for_it():
    bench, x = Bench(), leaf()
    bench.send(1, x * 2)
    bench.send(2, x * 3)
    first = bench.arrive(1)
    assert bench.arrive(2) is None
    first()
    join_spawned()
    assert bench.context.gradients[x].tolist() == [5.0, 5.0]


def test_a_repeated_gradient_changes_nothing():
    bench, x = Bench(), leaf()
    bench.send(1, x * 2)
    bench.run(1)
    assert bench.arrive(1) is None
    assert bench.context.gradients[x].tolist() == [2.0, 2.0]


def test_a_gradient_for_nothing_that_was_sent_fails_the_pass():
    bench = Bench()
    bench.send(1, leaf() * 2)
    bench.run(9)
    (error,) = bench.conductor.errors
    assert "which was never sent" in str(error)


def test_an_error_is_told_once_and_ends_this_part():
    bench, x = Bench(), leaf()
    h = x * 2

    def fail(_gradient):
        raise ValueError("own")

    h.register_hook(fail)
    bench.send(1, h)
    bench.send(2, x * 3)
    bench.run(1)
    assert bench.arrive(2) is None
    assert [str(error) for error in bench.conductor.errors] == ["own"]
    assert not bench.backward.fail(DistAutogradError("again"))


# ---------------------------------------------------------------- several entries


def shared(bench, with_receive=True):
    """Sends 1 and 2 of a common node."""
    x = leaf()
    h = x * received(5) if with_receive else x * 2
    bench.send(1, h * 3)
    bench.send(2, h * 4)
    return x


def test_several_entries_wait_for_one_another():
    bench = Bench()
    x = shared(bench)
    bench.run(1)
    assert bench.conductor.asked == 1
    assert bench.gradients_sent() == []
    bench.run(2)
    assert bench.gradients_sent() == [(5, [5], [1, 2])]
    assert bench.context.gradients[x].tolist() == [7.0, 7.0]


def test_the_question_is_asked_once_per_pass():
    bench = Bench()
    shared(bench)
    h = leaf() * 2
    bench.send(3, h * 2)
    bench.send(4, h * 2)
    bench.run(1)
    bench.run(3)
    assert bench.conductor.asked == 1


def test_the_answer_lets_run_what_need_not_wait():
    bench = Bench()
    x = shared(bench)
    bench.run(1)
    (task,) = bench.backward.learn_parts({GlobalId(*ME, 1): frozenset({0})})
    task()
    assert bench.context.gradients[x].tolist() == [3.0, 3.0]
    assert bench.gradients_sent() == [(5, [5], [1])]
    # A null token of the other entry comes later: it is consumed and told.
    bench.run(2, gradients=None)
    assert bench.conductor.reports == [([], [2], False)]
    assert bench.backward.learn_parts({}) == []


def test_null_tokens_of_what_takes_no_part_are_consumed():
    bench = Bench()
    shared(bench)
    bench.run(1, gradients=None)
    (task,) = bench.backward.learn_parts({})
    task()
    bench.run(2, gradients=None)
    assert bench.conductor.reports == [([], [1], False), ([], [2], False)]
    assert bench.gradients_sent() == []


def test_an_answer_before_anything_arrives_is_remembered():
    bench = Bench()
    x = shared(bench)
    assert bench.backward.learn_parts({GlobalId(*ME, 2): frozenset({0})}) == []
    bench.run(2)
    assert bench.context.gradients[x].tolist() == [4.0, 4.0]


def test_a_missing_participant_is_waited_for_inside_the_run():
    bench = Bench()
    x = shared(bench)
    bench.run(1)
    both = {GlobalId(*ME, number): frozenset({0}) for number in (1, 2)}
    (task,) = bench.backward.learn_parts(both)
    task()
    assert bench.conductor.waited.wait(10)
    bench.run(2, gradients=(torch.full((2,), 10.0),))
    join_spawned()
    assert bench.context.gradients[x].tolist() == [43.0, 43.0]
    assert bench.gradients_sent() == [(5, [], [])]
    assert bench.conductor.reports == [([5], [1, 2], False)]


def test_components_that_have_to_wait_do_so_in_one_run_which_begins_when_that_is_known():
    bench = Bench()
    x = leaf()
    for first, message in ((1, 5), (3, 6)):
        h = x * received(message)
        bench.send(first, h * 3)
        bench.send(first + 1, h * 4)
    everything = {GlobalId(*ME, number): frozenset({0}) for number in (1, 2, 3, 4)}
    bench.backward._walk()
    (task,) = bench.backward.learn_parts(everything)
    task()
    for number in (4, 1, 3, 2):
        assert len(spawned_threads()) == 1
        assert bench.arrive(number) is None
    join_spawned()
    assert bench.context.gradients[x].tolist() == [14.0, 14.0]
    assert bench.gradients_sent() == [(6, [], []), (5, [], [])]
    ((emitted, consumed, _),) = bench.conductor.reports
    assert (sorted(emitted), sorted(consumed)) == ([5, 6], [1, 2, 3, 4])


def test_a_blocking_run_is_freed_by_a_failure():
    bench = Bench(fast=True)
    shared(bench)
    bench.run(1)
    assert bench.conductor.waited.wait(10)
    assert bench.backward.status() == PassStatus(0, 1, False, (GlobalId(*ME, 2),))
    assert bench.backward.fail(DistAutogradError("elsewhere"))
    join_spawned()
    assert spawned_threads() == []
    assert bench.conductor.errors == []


# ---------------------------------------------------------------- the roots


def test_a_pass_that_fails_before_its_roots_are_walked_has_nothing_to_do():
    bench, x = Bench(is_distant=False), leaf()
    assert bench.backward.fail(DistAutogradError("the worker has shut down"))
    roots = Entry(None, (get_gradient_edge(x.sum()),))
    assert bench.backward.begin(roots, (torch.ones(()),)) is None


def test_the_roots_run_on_the_thread_that_called():
    bench, x = Bench(is_distant=False), leaf()
    loss = (x * received(5)).sum()
    task = bench.backward.begin(Entry(None, (get_gradient_edge(loss),)), (torch.ones(()),))
    task()
    assert bench.context.gradients[x].tolist() == [1.0, 1.0]
    assert bench.conductor.reports == [([5], [], True)]
    assert bench.conductor.handed == []


def test_roots_that_had_to_wait_are_handed_to_that_thread():
    bench, x = Bench(is_distant=False), leaf()
    loss = (x * received(5)).sum()
    assert bench.context.runs.enter("an earlier pass", lambda: None)
    bench.backward.begin(Entry(None, (get_gradient_edge(loss),)), (torch.ones(()),))()
    assert bench.context.gradients == {}
    (later,) = bench.context.runs.leave()
    later()  # by any thread
    (run,) = bench.conductor.handed
    assert bench.context.gradients == {}
    run()
    assert bench.context.gradients[x].tolist() == [1.0, 1.0]
    assert bench.conductor.reports == [([5], [], True)]


def test_runs_of_the_next_pass_wait_for_those_of_a_failed_one():
    bench, x = Bench(), leaf()
    bench.send(1, x * 2)
    later = []
    assert bench.context.runs.enter("an earlier pass", lambda: None)
    bench.run(1)
    assert bench.context.gradients == {}
    later = bench.context.runs.leave()
    for task in later:
        task()
    assert bench.context.gradients[x].tolist() == [2.0, 2.0]


def test_reach_and_standing_tell_of_this_part():
    bench = Bench()
    shared(bench)
    reach = bench.backward.find_reach()
    assert reach.received == ((GlobalId(*PEER, 5), 0),)
    assert [message.counter for message, _ in reach.sent] == [2, 1]
    assert bench.backward.status() == PassStatus(0, 0, False, ())


def test_a_question_is_answered_before_the_walk_and_of_the_same_sends(monkeypatch):
    bench = Bench()
    x = shared(bench)
    steps = []
    monkeypatch.setattr(bench.conductor, "send", lambda *_: steps.append("answered"), raising=False)
    monkeypatch.setattr(bench.backward, "_walk", lambda: steps.append("walked") or [])
    bench.backward.tell_reach()
    assert steps == ["answered", "walked"]
    monkeypatch.undo()
    bench.send(3, x * 4)  # meanwhile
    bench.backward.tell_reach()
    assert [entry.message.counter for entry in bench.backward._entries] == [2, 1]


def test_the_walk_of_a_question_takes_the_gradients_along():
    bench = Bench()
    x = shared(bench)
    h = x * 2
    bench.send(3, h)
    assert bench.arrive(3) is not None  # nobody runs this task …
    bench.backward.tell_reach()  # … but this walks, and finds the gradient
    join_spawned()
    assert bench.context.gradients[x].tolist() == [2.0, 2.0]


def blocked_bench():
    """With a run that waits inside."""
    bench = Bench()
    shared(bench)
    bench.run(1)
    (task,) = bench.backward.learn_parts({GlobalId(*ME, n): frozenset({0}) for n in (1, 2)})
    task()
    assert bench.conductor.waited.wait(10)
    return bench


def test_the_conductor_hears_of_runs_that_wait_inside_and_of_the_end():
    bench = blocked_bench()
    assert bench.conductor.waits == ["begun"]
    bench.run(2)
    join_spawned()
    assert bench.conductor.waits == ["begun", "over"]
    bench.backward.fail(DistAutogradError("the next one has begun"), may_be_over=True)
    bench.backward.fail(DistAutogradError("too late"))
    assert bench.conductor.waits == ["begun", "over", "ended"]


def test_the_end_of_a_pass_of_which_something_waits_is_a_failure():
    bench = blocked_bench()
    bench.backward.fail(DistAutogradError("the next one has begun"), may_be_over=True)
    join_spawned()
    assert bench.conductor.waits[:2] == ["begun", "failed"]
