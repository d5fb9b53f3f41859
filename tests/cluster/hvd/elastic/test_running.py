"""The loop around a training, while ranks die and come."""

from __future__ import annotations

import pytest
import torch

from lockstitch import hvd
from lockstitch.errors import RankLostError
from lockstitch.hvd import elastic
from lockstitch.launcher_link import Update
from lockstitch.launcher_link.process import JOB
from tests.cluster.hvd.elastic.worlds import Died, Worlds

STEPS = 6


def make(worker):
    torch.manual_seed(worker)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    optimizer._reducer._session = None  # that of the moment, as in a process of its own
    return elastic.TorchState(model, optimizer, step=0, trace=[])


def train(state, worker, at_step=None):
    while state.step < STEPS:
        if at_step is not None:
            at_step(state, worker)
        inputs = torch.full((4, 3), 1.0 + state.step + worker.number)
        state.optimizer.zero_grad()
        state.model(inputs).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        state.trace.append((state.step, hvd.size()))
        state.commit()
    weights = torch.nn.utils.parameters_to_vector(state.model.parameters()).detach()
    momentum = [state.optimizer.state[p]["momentum_buffer"] for p in state.model.parameters()]
    return weights, torch.nn.utils.parameters_to_vector(momentum), state.trace


def all_equal(results):
    first, *others = results
    return all(
        torch.equal(first[0], other[0]) and torch.equal(first[1], other[1]) for other in others
    )


def test_all_ranks_begin_with_the_state_of_rank_0_and_stay_equal():
    with Worlds({0: 0, 1: 1}) as worlds:
        results = worlds.train(make, train)
    assert all_equal(results.values())
    assert results[1][2] == [(step, 2) for step in range(1, STEPS + 1)]


def test_after_a_death_the_others_go_back_to_the_last_commit_and_on():
    def at_step(state, worker):
        if worker.number == 1 and state.step == 3:
            worker.die()

    with Worlds({0: 0, 1: 1, 2: 2}, {0: 0, 2: 1}) as worlds:
        results = worlds.train(make, lambda *a: train(*a, at_step))
    assert isinstance(results.pop(1), Died)
    assert all_equal(results.values())
    assert results[0][2] == [(1, 3), (2, 3), (3, 3), (4, 2), (5, 2), (6, 2)]


def test_a_death_of_rank_0_costs_no_more():
    def at_step(state, worker):
        if worker.number == 0 and state.step == 4:
            worker.die()

    with Worlds({0: 0, 1: 1, 2: 2}, {1: 0, 2: 1}) as worlds:
        results = worlds.train(make, lambda *a: train(*a, at_step))
    assert all_equal([results[1], results[2]])
    assert results[1][2][-1] == (6, 2)


def test_a_new_one_comes_in_at_a_commit_and_gets_everything():
    def at_step(state, worker):
        if worker.world == 0 and state.step == 2 and hvd.rank() == 0:
            state.on_hosts_updated(1, 2)

    with Worlds({0: 0, 1: 1}, {0: 0, 1: 1, 2: 2}) as worlds:
        results = worlds.train(make, lambda *a: train(*a, at_step))
    assert all_equal(results.values())
    assert results[2][2] == [(1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3)]


def test_callbacks_are_called_in_the_new_world_before_it_trains():
    called = []

    def make_with_callback(worker):
        state = make(worker)
        state.register_reset_callbacks([lambda: called.append((worker, state.step, hvd.size()))])
        return state

    def at_step(state, worker):
        if worker.number == 1 and state.step == 3:
            worker.die()

    with Worlds({0: 0, 1: 1}, {0: 0}) as worlds:
        worlds.train(make_with_callback, lambda *a: train(*a, at_step))
    assert called == [(0, 3, 1)]


def test_errors_of_the_program_pass_through():
    def fail(state, worker):
        raise ZeroDivisionError

    with Worlds({0: 0}) as worlds:
        assert isinstance(worlds.train(make, fail)[0], ZeroDivisionError)


class Kept(elastic.State):
    """A state that says what is done with it."""

    def __init__(self):
        super().__init__(bcast_object=lambda value: value, get_rank=lambda: 0)
        self.done = []

    def save(self):
        self.done.append("save")

    def restore(self):
        self.done.append("restore")

    def sync(self):
        self.done.append("sync")

    def reset(self):
        self.done.append("reset")


def test_what_is_done_with_the_state_after_each_kind_of_interruption():
    state = Kept()
    interruptions = [
        elastic.HorovodInternalError("gone"),
        elastic.HostsUpdatedInterrupt(skip_sync=True),
        elastic.HostsUpdatedInterrupt(),
    ]

    def func(state):
        state.done.append("train")
        if interruptions:
            raise interruptions.pop(0)
        return "result"

    trained = elastic.run_fn(func, lambda: state.done.append("meet"))
    assert trained(state) == "result"
    first, *others = "sync train", "restore", "", ""
    assert (
        state.done
        == "".join([first, *(f" {before} meet reset sync train" for before in others)]).split()
    )


def test_ranks_that_cannot_meet_try_again_without_going_back_twice():
    state = Kept()
    failures = [elastic.HorovodInternalError("gone"), elastic.HorovodInternalError("gone too")]

    def meet():
        if len(failures) == 1:
            raise failures.pop()

    def func(state):
        if len(failures) == 2:
            raise failures.pop()
        return "result"

    assert elastic.run_fn(func, meet)(state) == "result"
    assert state.done == ["sync", "restore", "reset", "sync"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_where_nobody_replaces_ranks_the_loss_of_one_is_told_at_once(is_lost, capsys):
    state, told = Kept(), []

    def func(state):
        if not told:
            raise RankLostError("rank 1 died") if is_lost else elastic.HorovodInternalError("other")
        return "result"

    def meet():
        told.append(capsys.readouterr().err)

    assert elastic.run_fn(func, meet)(state) == "result"
    assert told[0].startswith("lockstitch: rank 1 died. The ranks that are left wait") == is_lost
    assert ("--min-np" in told[0]) == is_lost


@pytest.fixture
def launcher(monkeypatch):
    """A launcher that has said something before anybody listens."""

    class Link:
        last_update = Update(7, 2)

    monkeypatch.setattr(JOB, "_client", Link())
    return JOB


def test_news_that_came_before_the_training_began_are_not_lost(launcher):
    state = Kept()

    def func(state):
        if "meet" in state.done:
            return "result"
        return state.check_host_updates()

    def meet():
        state.done.append("meet")
        launcher._client.last_update = None

    assert elastic.run_fn(func, meet)(state) == "result"
    assert launcher._listeners == []


def test_news_that_came_while_the_ranks_met_are_not_lost(launcher):
    state = Kept()
    launcher._client.last_update = None
    state.register_reset_callbacks([lambda: state.done.append("callback")])

    def func(state):
        if state.done.count("meet") == 0:
            raise elastic.HorovodInternalError("gone")
        if state.done.count("meet") == 1:
            state.check_host_updates()
        return state.done.count("meet")

    def meet():
        is_first = "meet" not in state.done
        state.done.append("meet")
        launcher._client.last_update = Update(8, 2) if is_first else None

    assert elastic.run_fn(func, meet)(state) == 2


def test_what_is_no_state_is_refused_with_advice():
    @hvd.elastic.run
    def train(state):
        return state

    with pytest.raises(TypeError, match=r"with its state first.* not with a Linear"):
        train(torch.nn.Linear(1, 1))
