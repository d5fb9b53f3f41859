"""Slots on streams beside each other: nobody reads what is not there yet or no more, nobody waits
for ever, and nothing is kept. A stream that is busy is one that sleeps on the device."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel, DataParallelCriterion, parallel
from lockstitch.nn.slots.cuda import on_stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GPU = "cuda:0"
BUSY_CYCLES = 50_000_000  # some 30 ms
CALLERS = set()
"""The streams on which tests call a model."""


@pytest.fixture(autouse=True)
def _callers():
    CALLERS.add(torch.cuda.default_stream())
    yield
    CALLERS.clear()


def another_stream():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    CALLERS.add(stream)
    return stream


def keep_busy():
    """The current stream."""
    torch.cuda._sleep(BUSY_CYCLES)


class Net(nn.Module):
    """Keeps the stream busy, before it looks at its input, in every slot but the caller's."""

    def __init__(self, is_slow=False, dropout=0.0):
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 8)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("scale", torch.ones(8))
        self.is_slow = is_slow

    def forward(self, x):
        if self.is_slow and torch.cuda.current_stream() not in CALLERS:
            keep_busy()
        return self.second(self.dropout(torch.tanh(self.first(x)))) * self.scale


def net(**options):
    torch.manual_seed(0)
    return Net(**options).to(GPU)


@pytest.fixture
def parallelize():
    made = []

    def make(module, slots=2, kind=DataParallel):
        made.append(kind(module, [GPU, *[on_stream(GPU)] * (slots - 1)]))
        return made[-1]

    yield make
    for each in made:
        each.close()
    made.clear()
    torch.cuda.synchronize()


def batch(rows=64):
    return torch.randn(rows, 32, device=GPU)


def gradients(module):
    return [each.grad for each in module.parameters()]


def alike(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------ what is not there yet


def test_a_slot_is_made_of_what_the_caller_has_queued(parallelize):
    module, x = net(), batch()
    model = parallelize(module)
    torch.cuda.synchronize()
    keep_busy()
    module.scale.fill_(3)
    output = model(x)
    alike(output, module(x))


def test_a_slot_waits_for_its_input_and_the_caller_for_the_output(parallelize):
    module = net(is_slow=True)
    model = parallelize(module)
    model(batch())
    for i in range(5):
        x = torch.zeros(64, 32, device=GPU)
        keep_busy()
        x.fill_(i + 1)
        output = model(x).clone()
        alike(output, module(x))


def test_the_callers_current_stream_is_the_one_that_counts(parallelize):
    module = net(is_slow=True)
    twin = copy.deepcopy(module)
    model, side = parallelize(module), another_stream()
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (module, twin)]
    with torch.cuda.stream(side):
        for _ in range(4):
            x = torch.zeros(64, 32, device=GPU)
            keep_busy()
            x.normal_()
            for each, optimizer in zip((model, twin), optimizers, strict=True):
                optimizer.zero_grad()
                each(x).pow(2).mean().backward()
                optimizer.step()
        found = [each.clone() for each in module.parameters()]
        expected = [each.clone() for each in twin.parameters()]
    side.synchronize()
    alike(found, expected)


# It is right about the streams; it only says that they have to wait for each other.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_forward_and_backward_may_be_on_different_streams(parallelize):
    module = net(is_slow=True)
    model, side, x = parallelize(module), another_stream(), batch()
    with torch.cuda.stream(side):
        keep_busy()
        loss = model(x).pow(2).mean()
    loss.backward()
    found = [each.clone() for each in gradients(module)]
    module.zero_grad()
    torch.cuda.synchronize()
    module(x).pow(2).mean().backward()
    alike(found, gradients(module))


def test_gradients_of_gradients_wait_for_another_stream_too(parallelize):
    module, x = net(is_slow=True), batch().requires_grad_()
    model, side = parallelize(module), another_stream()

    def penalty(each, stream):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = each(x).pow(2).sum()
        torch.cuda.current_stream().wait_stream(stream)
        (gradient,) = torch.autograd.grad(output, x, create_graph=True)
        module.zero_grad()
        gradient.pow(2).sum().backward()
        return [each.clone() for each in gradients(module)]

    torch.testing.assert_close(penalty(model, side), penalty(module, side), rtol=1e-3, atol=1e-3)


def test_parameters_may_be_changed_as_soon_as_backward_returns(parallelize):
    module = net(is_slow=True)
    twin = copy.deepcopy(module)
    model, results = parallelize(module), []
    for _ in range(4):
        x = batch()
        for each, own in ((model, module), (twin, twin)):
            own.zero_grad()
            each(x).pow(2).mean().backward()
            with torch.no_grad():
                for parameter in own.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
        results.append([each.clone() for each in module.parameters()])
        alike(results[-1], list(twin.parameters()))


def test_joining_on_the_host_waits_for_the_devices():
    pieces = [torch.zeros(1 << 20, device=GPU) for _ in range(2)]
    for function in (
        lambda: parallel.gather(pieces, "cpu"),
        lambda: torch.cat(parallel.comm.scatter(torch.cat(pieces), ["cpu", "cpu"])),
        lambda: torch.cat(parallel.comm.broadcast_coalesced(pieces, ["cpu"])[0]),
        lambda: parallel.comm.gather(pieces, out=torch.empty(1 << 21)),
        lambda: parallel.comm.broadcast(pieces[0], out=[torch.empty(1 << 20)])[0],
    ):
        for i in range(3):
            keep_busy()
            for piece in pieces:
                piece.fill_(i)
            assert function().eq(i).all()


def test_replicas_run_on_the_callers_stream():
    side = another_stream()
    module = net()
    with torch.cuda.stream(side):
        x = torch.zeros(64, 32, device=GPU)
        keep_busy()
        x.fill_(1)
        outputs = parallel.parallel_apply([module, module], [x, x], devices=[GPU, GPU])
        alike(outputs, [module(x)] * 2)
    side.synchronize()


# ------------------------------------------------------------------------- what is there no more


def test_memory_of_an_input_is_not_given_out_while_a_slot_reads_it(parallelize):
    module = net(is_slow=True)
    model = parallelize(module)
    model(batch())
    outputs, expected = [], []
    for i in range(5):
        x = torch.full((64, 32), float(i), device=GPU)
        expected.append(module(x))
        torch.cuda.synchronize()
        outputs.append(model(x))
        del x
        # Would lie where the input was, if that were free.
        outputs.append(torch.full((64, 32), torch.nan, device=GPU))
    alike(outputs[::2], expected)


def test_memory_of_outputs_and_gradients_is_not_given_out_to_the_slot(parallelize):
    module = net()
    model, x = parallelize(module), batch()
    expected = module(x).detach()
    for _ in range(10):
        output = model(x)
        keep_busy()
        kept = output * 1  # reads it late
        output.sum().backward()
        del output
        alike(kept.detach(), expected)


def test_memory_does_not_grow(parallelize):
    module = net()
    model = parallelize(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch(256)).pow(2).mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        gc.collect()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    first, last = train(50), train(200)
    assert last[0] <= first[0] + (1 << 20)
    assert last[1] <= first[1] + (16 << 20)


def test_graphs_that_nobody_goes_back_through_are_freed(parallelize):
    model = parallelize(net())

    def forward(passes):
        for _ in range(passes):
            model(batch(4096))
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before = forward(10)
    assert forward(100) <= before + (1 << 20)


class Scaled(nn.Module):
    """Needs no library, which would take memory of its own for each stream."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, device=GPU))

    def forward(self, x):
        return x * self.weight.sum()


def test_parameters_are_in_memory_once(parallelize):
    module, x = Scaled(1 << 22), torch.ones(6, 1, device=GPU)
    model = parallelize(module, slots=3)
    with torch.no_grad():
        model(x[:1])
        before = torch.cuda.memory_allocated()
        model(x)
    assert torch.cuda.memory_allocated() < before + module.weight.nbytes / 2
    assert [slot.statistics.parameter_bytes for slot in model.slots] == [0, 0]


# --------------------------------------------------------------------------- who waits for whom


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_one_backward_pass_through_several_forward_passes(parallelize, slots):
    """The thread that goes back through a device's graphs must not wait for a slot's."""
    module = net()
    model = parallelize(module, slots)
    for _ in range(10):
        xs = [batch() for _ in range(3)]
        module.zero_grad()
        sum(model(x).pow(2).mean() for x in xs).backward()
        found = [each.clone() for each in gradients(module)]
        module.zero_grad()
        sum(module(x).pow(2).mean() for x in xs).backward()
        alike(found, gradients(module))


def test_threads_that_train_side_by_side(parallelize):
    module = net()
    model = parallelize(module, slots=3)
    xs, found = [batch() for _ in range(4)], {}

    def work(i):
        torch.cuda.set_device(0)
        for _ in range(5):
            output = model(xs[i]).pow(2).mean()
            found[i] = torch.autograd.grad(output, list(module.parameters()))
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        module.zero_grad()
        module(x).pow(2).mean().backward()
        alike(list(found[i]), gradients(module))


class InputGradient(nn.Module):
    """Goes back through a graph within its forward pass."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return gradient


def test_a_backward_pass_within_the_forward_pass(parallelize):
    module, x = InputGradient(), batch()
    model = parallelize(module, slots=3)
    outputs = [model(x) for _ in range(3)]
    sum(each.pow(2).mean() for each in outputs).backward()
    found = [each.clone() for each in gradients(module) if each is not None]
    module.zero_grad()
    sum(module(x).pow(2).mean() for _ in range(3)).backward()
    alike(outputs[0], module(x))
    alike(found[0], gradients(module)[0])


def test_the_callers_intra_op_threads_stay_as_they_are(parallelize):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        model = parallelize(net(), slots=3)
        for _ in range(5):
            model(batch()).sum().backward()
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


# --------------------------------------------------------------- random numbers, precision, the end


def test_random_numbers_follow_the_seed_and_differ_by_slot_and_call(parallelize):
    module = net(dropout=0.5)
    model, x = parallelize(module, slots=3), torch.ones(96, 32, device=GPU)

    def run(seed):
        torch.manual_seed(seed)
        first, second, after = model(x), model(x), torch.rand(3, device=GPU)
        return first.detach(), second.detach(), after

    for one, other in zip(run(1), run(1), strict=True):
        assert torch.equal(one, other)
    first, second, after = run(1)
    assert not torch.equal(first, second)
    parts = first.chunk(3)
    assert not torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[1], parts[2])
    torch.manual_seed(1)
    alike(module(x[:32]).detach(), parts[0])
    module(x[:32])
    assert torch.equal(torch.rand(3, device=GPU), after)


def test_gradients_of_gradients_see_the_same_random_numbers(parallelize):
    module, x = net(dropout=0.5), batch().requires_grad_()
    model = parallelize(module)
    output = model(x)
    (plain,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    before = torch.cuda.get_rng_state()
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    alike(gradient.detach(), plain)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_half_precision_with_scaled_gradients(parallelize):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)).to(GPU)
    twin = copy.deepcopy(module)
    model, x = parallelize(module), batch()
    for each, own in ((model, module), (twin, twin)):
        optimizer, scaler = torch.optim.SGD(own.parameters(), 0.1), torch.amp.GradScaler("cuda")
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                output = each(x)
                assert output.dtype is torch.float16
                loss = output.float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    torch.testing.assert_close(
        list(module.parameters()), list(twin.parameters()), rtol=1e-2, atol=1e-2
    )


def test_batch_statistics_are_those_of_slot_0(parallelize):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(GPU)
    reference, x = copy.deepcopy(module), torch.randn(8, 3, 8, 8, device=GPU)
    model = parallelize(module)
    for _ in range(3):
        model(x).sum().backward()
        reference(x[:4])
    torch.testing.assert_close(module.state_dict(), reference.state_dict(), rtol=1e-3, atol=1e-3)
    module.eval()
    torch.testing.assert_close(model(x), module(x), rtol=1e-2, atol=1e-2)


def test_the_loss_in_the_slots(parallelize):
    module, x = net(), batch(10)
    targets = torch.arange(10, device=GPU) % 8
    model = parallelize(
        module, kind=lambda each, ids: DataParallelCriterion(each, nn.CrossEntropyLoss(), ids)
    )
    loss = model(x, targets)
    loss.backward()
    found = [each.clone() for each in gradients(module)]
    module.zero_grad()
    expected = nn.functional.cross_entropy(module(x), targets)
    expected.backward()
    alike(loss, expected)
    alike(found, gradients(module))


def test_inputs_on_the_host_are_brought_to_the_slots(parallelize):
    module, x = net(), torch.randn(64, 32, requires_grad=True)
    model = parallelize(module)
    for given in (x, x.detach().pin_memory()):
        alike(model(given), module(given.to(GPU)))
    model(x).sum().backward()
    found, x.grad = x.grad, None
    module(x.to(GPU)).sum().backward()
    alike(found, x.grad)


def test_it_can_be_closed_and_used_again(parallelize):
    module, x = net(), batch()
    model = parallelize(module)
    for _ in range(3):
        alike(model(x), module(x))
        (slot,) = model.slots
        model.close()
        model.close()
        assert not slot.is_alive
        assert model.slots == ()


def test_what_slot_0_raises_leaves_nothing_behind(parallelize):
    module, x = net(is_slow=True), batch()
    model = parallelize(module)
    alike(model(x), module(x))

    def fail(_module, _args):
        if torch.cuda.current_stream() in CALLERS:
            raise KeyError("slot 0")

    handle = module.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="slot 0"):
        model(x)
    handle.remove()
    alike(model(x), module(x))
