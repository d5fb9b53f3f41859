"""The wrapper itself."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from lockstitch.nn import DataParallel, data_parallel
from tests.parity.behaviours.pieces import Net, batch, gradients, own, same, step


@own
def state_dict_has_the_prefix(wrap):
    module = Net()
    assert list(wrap(module).state_dict()) == [f"module.{name}" for name in module.state_dict()]


@own
def copies_have_slots_of_their_own(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(x), module(x))
        twin.close()


@own
def nested_wrappers_run_once(wrap):
    module, x = Net(), batch()
    inner = wrap(nn.Linear(3, 2))
    model = wrap(nn.Sequential(module, inner))
    output = model(x)
    torch.testing.assert_close(output, inner.module(module(x)))
    assert inner.slots == ()


@own
def steps_can_be_overridden(wrap):
    class Counting(DataParallel):
        def scatter(self, inputs, kwargs, device_ids):
            return [(inputs[0][:1],), (inputs[0][1:],)], [{}, {}]

        def gather(self, outputs, output_device):
            return list(outputs)

    module, x = Net(), batch()
    model = Counting(module, wrap.device_ids)
    first, second = model(x)
    assert (len(first), len(second)) == (1, 5)
    (first.sum() + second.sum()).backward()
    grads = gradients(module)
    module.zero_grad()
    step_ = module(x).sum()
    step_.backward()
    torch.testing.assert_close(grads, gradients(module))
    model.close()


@own
def replicas_can_be_called_one_by_one(wrap):
    class Sequential(DataParallel):
        def parallel_apply(self, replicas, inputs, kwargs):
            return [r(*i, **k) for r, i, k in zip(replicas, inputs, kwargs, strict=True)]

    module, x = Net(), batch()
    model = Sequential(module, wrap.device_ids)
    output = model(x)
    torch.testing.assert_close(output, module(x))
    output.sum().backward()
    model.close()


@own
def calls_from_several_threads(wrap):
    module, xs, results = Net(), [batch() for _ in range(4)], {}
    model = wrap(module)

    def call(i):
        results[i] = model(xs[i])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        torch.testing.assert_close(results[i], module(x))


@own
def slots_are_made_once(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    step(model, module, x)
    (slot,) = model.slots
    moved = slot.statistics.parameter_bytes, slot.statistics.other_bytes
    for _ in range(3):
        step(model, module, x)
        with torch.no_grad():
            module.first.weight.mul_(0.9)
    assert model.slots == (slot,)
    assert (slot.statistics.parameter_bytes, slot.statistics.other_bytes) == moved


@own
def graphs_that_are_dropped_are_dropped_in_slots(wrap):
    module = Net()
    model = wrap(module)
    outputs = [model(batch()) for _ in range(5)]
    del outputs
    output = model(batch())
    model.slots[0].close()
    with pytest.raises((RuntimeError, ConnectionError), match="slot 1"):
        output.sum().backward()
    step(model, module, batch())


@own
def the_functional_form(wrap):
    module, x = Net(), batch()
    output = data_parallel(module, x, wrap.device_ids)
    torch.testing.assert_close(output, module(x))
    output.sum().backward()
    grads = gradients(module)
    module.zero_grad()
    step_ = module(x).sum()
    step_.backward()
    torch.testing.assert_close(grads, gradients(module))


@same
def spectral_norm_in_evaluation(wrap):
    module = spectral_norm(nn.Linear(4, 4)).eval()
    return step(wrap(module), module, batch())
