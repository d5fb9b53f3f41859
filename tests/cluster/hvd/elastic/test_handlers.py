from __future__ import annotations

import pytest
import torch

from lockstitch import hvd
from lockstitch.hvd.elastic import (
    ElasticSampler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
from lockstitch.hvd.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    SchedulerStateHandler,
    StateHandler,
    handler_of,
)
from tests.cluster.hvd.ranks import on_ranks


def test_models_optimizers_and_samplers_have_handlers_other_values_none():
    def program():
        model = torch.nn.Linear(1, 1)
        values = [model, torch.optim.SGD(model.parameters(), lr=1.0), ElasticSampler(range(2)), 3]
        return [type(handler_of(value)) for value in values]

    assert on_ranks(1, program) == [
        [ModelStateHandler, OptimizerStateHandler, SamplerStateHandler, type(None)]
    ]


def test_a_scheduler_goes_on_with_the_optimizer_that_it_has():
    def program():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if hvd.rank() == 0:
            optimizer.step()
            scheduler.step()
        state = TorchState(optimizer=optimizer, scheduler=scheduler, epoch=0)
        assert isinstance(handler_of(scheduler), SchedulerStateHandler)
        state.sync()
        assert state.scheduler is scheduler
        rates = []
        for _ in range(2):
            optimizer.step()
            state.scheduler.step()
            rates.append((optimizer.param_groups[0]["lr"], scheduler.last_epoch))
            state.restore()
        return rates

    assert on_ranks(2, program) == [[(0.25, 2)] * 2] * 2


def test_buffers_of_a_model_are_kept_too():
    model = torch.nn.BatchNorm1d(2)
    handler = ModelStateHandler(model)
    model(torch.randn(4, 2))
    handler.restore()
    assert model.running_mean.tolist() == [0.0, 0.0]


def test_restoring_an_optimizer_twice_gives_the_same():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)

    def step():
        parameter.grad = torch.ones(2)
        optimizer.step()
        return optimizer.state[parameter]["momentum_buffer"].tolist()

    first = step()
    handler = OptimizerStateHandler(optimizer)
    second = step()
    for _ in range(2):
        handler.restore()
        assert step() == second != first


def test_what_any_rank_has_processed_is_processed():
    def program():
        sampler = ElasticSampler(range(8), shuffle=False)
        handler = SamplerStateHandler(sampler)
        sampler.record_indices([2 * hvd.rank()])
        handler.sync()
        sampler.record_indices([7])
        handler.restore()
        return sampler.processed_indices

    assert on_ranks(3, program) == [{0, 2, 4}] * 3


def test_the_epoch_is_that_of_rank_0():
    def program():
        sampler = ElasticSampler(range(8))
        sampler.set_epoch(5 - hvd.rank())
        sampler.record_indices([hvd.rank()])
        SamplerStateHandler(sampler).sync()
        return sampler.epoch, sampler.processed_indices

    assert on_ranks(2, program) == [(5, {0})] * 2


class Clock:
    ticks = 0


class ClockHandler(StateHandler):
    def save(self):
        self.saved = self.value.ticks

    def restore(self):
        self.value.ticks = self.saved

    def sync(self):
        self.save()


@pytest.fixture
def registry():
    before = get_handler_registry()
    yield
    set_handler_registry(before)


def test_a_program_may_add_a_handler_of_its_own(registry):
    set_handler_registry([(Clock, ClockHandler), *get_handler_registry()])
    clock = Clock()
    state = TorchState(clock=clock)
    clock.ticks = 3
    state.save()
    clock.ticks = 4
    state.restore()
    assert state.clock is clock
    assert clock.ticks == 3
