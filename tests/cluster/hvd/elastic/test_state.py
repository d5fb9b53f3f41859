from __future__ import annotations

import torch

from lockstitch import hvd
from lockstitch.hvd.elastic import ElasticSampler, TorchState
from tests.cluster.hvd.ranks import on_ranks


def made(**kwargs):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return TorchState(model, optimizer, **kwargs)


def step(state):
    state.optimizer.zero_grad()
    state.model(torch.ones(3, 2)).sum().backward()
    state.optimizer.step()


def test_everything_goes_back_together():
    state = made(epoch=0)
    step(state)
    state.epoch = 1
    state.save()
    kept = [p.clone() for p in state.model.parameters()]
    step(state)
    state.epoch = 2
    state.restore()
    assert state.epoch == 1
    assert all(map(torch.equal, kept, state.model.parameters()))


def test_all_ranks_get_what_rank_0_has():
    def program():
        torch.manual_seed(hvd.rank())
        sampler = ElasticSampler(range(8))
        state = made(sampler=sampler, epoch=hvd.rank())
        if hvd.rank() == 0:
            step(state)  # the others have no momentum yet
        state.epoch += 5
        sampler.record_indices([hvd.rank()])
        state.sync()
        step(state)
        values = [p.tolist() for p in state.model.parameters()]
        return values, state.epoch, state.sampler.processed_indices

    found = on_ranks(3, program)
    assert found[0] == found[1] == found[2]
    assert found[0][1:] == (5, {0, 1, 2})


def test_another_model_may_take_the_place():
    state = made()
    other = torch.nn.Linear(2, 1)
    state.model = other
    before = other.weight.clone()
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert state.model is other
    assert torch.equal(other.weight, before)


def test_a_state_without_a_model_keeps_plain_values():
    state = TorchState(batch=3)
    assert (state.model, state.optimizer, state.batch) == (None, None, 3)
    state.batch = 4
    state.restore()
    assert state.batch == 3
