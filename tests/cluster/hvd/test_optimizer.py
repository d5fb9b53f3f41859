"""Several ranks, each on its part of the batch, against one process of plain torch on the whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import hvd
from tests.cluster.hvd.ranks import on_ranks
from tests.cluster.hvd.steps import (
    OPTIMIZERS,
    STEPS,
    WITHOUT_SKIPPING,
    assert_all_are,
    batch,
    in_one_process,
    loss_of,
    mine,
    model,
    values,
)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum},
        {"compression": hvd.Compression.bf16},
    ],
    ids=lambda options: "".join(options) or "plain",
)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_ranks_equal_one_process_on_the_whole_batch(kind, options, set_to_none):
    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS[kind](net.parameters()), net.named_parameters(), **options
        )
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = loss_of(net, *map(mine, batch(step)))
            (loss / 2 if "op" in options else loss).backward()
            optimizer.step()
        return values(net)

    tolerance = {"rtol": 0.1, "atol": 0.05} if "compression" in options else {}
    assert_all_are(in_one_process(OPTIMIZERS[kind]), on_ranks(2, program), **tolerance)


@pytest.mark.parametrize("form", ["passes", "no_sync", "partial"])
def test_accumulated_gradients(form):
    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["sgd"](net.parameters()),
            backward_passes_per_step={"passes": 3, "no_sync": 1, "partial": 5}[form],
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            pieces = [mine(each).chunk(3) for each in batch(step)]
            for number, (inputs, labels) in enumerate(zip(*pieces, strict=True)):
                loss = loss_of(net, inputs, labels) / 3
                if form == "no_sync" and number < 2:
                    with optimizer.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
        return values(net)

    assert_all_are(in_one_process(OPTIMIZERS["sgd"]), on_ranks(2, program))


def test_step_with_a_closure_stays_in_step():
    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["adam"](net.parameters()))
        losses = []
        for step in range(STEPS):

            def closure(step=step):
                optimizer.zero_grad()
                loss = loss_of(net, *map(mine, batch(step)))
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        return [*values(net), torch.tensor(losses)]

    results = on_ranks(2, program)
    assert torch.equal(results[0][-1], results[1][-1])
    assert_all_are(in_one_process(OPTIMIZERS["adam"]), [result[:-1] for result in results])


def test_lbfgs_decides_alike_on_all_ranks():
    def train(net, optimizer, part):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(net, *map(part, batch(0)))
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return values(net)

    def make(net):
        return torch.optim.LBFGS(net.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def program():
        net = model()
        return train(net, hvd.DistributedOptimizer(make(net)), mine)

    alone = model()
    expected = train(alone, make(alone), lambda tensor: tensor)
    assert_all_are(expected, on_ranks(2, program))


@pytest.mark.parametrize("ritual", [False, True])
@pytest.mark.filterwarnings(WITHOUT_SKIPPING)
def test_clipping_between_backward_and_step(ritual):
    def clipped(net, optimizer, part):
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(net, *map(part, batch(step))).backward()
            if ritual and hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
        return values(net)

    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()))
        return clipped(net, optimizer, mine)

    alone = model()
    expected = clipped(alone, OPTIMIZERS["sgd"](alone.parameters()), lambda tensor: tensor)
    assert_all_are(expected, on_ranks(2, program))


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_that_were_clipped_are_added_to_and_averaged_again(ranks):
    def trained(net, optimizer, part):
        for step in range(STEPS):
            optimizer.zero_grad()
            for number in range(3):  # before one step
                loss_of(net, *map(part, batch(3 * step + number))).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.1 + 0.1 * number)
            optimizer.step()
        return values(net)

    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()))
        return trained(net, optimizer, mine)

    alone = model()
    expected = trained(alone, OPTIMIZERS["sgd"](alone.parameters()), lambda tensor: tensor)
    assert_all_are(expected, on_ranks(ranks, program))


def test_sums_that_were_changed_are_not_summed_again():
    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()), op=hvd.Sum)
        loss_of(net, *batch(0)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        with pytest.raises(AssertionError, match="computed 2 times"):
            loss_of(net, *batch(1)).backward()
        optimizer.step()

    on_ranks(2, program)


def test_skip_synchronize_takes_gradients_as_they_are():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        (weight * hvd.rank()).sum().backward()
        optimizer.synchronize()
        weight.grad.add_(10)
        with optimizer.skip_synchronize():
            optimizer.step()
        return weight.item()

    assert on_ranks(2, program) == [-10.5] * 2


def test_parameter_unfrozen_later_stays_in_step():
    def train(net, optimizer, part):
        for step in range(STEPS):
            net[0].requires_grad_(step >= 2)
            optimizer.zero_grad()
            loss_of(net, *map(part, batch(step))).backward()
            optimizer.step()
        return values(net)

    def program():
        net = model()
        net[0].requires_grad_(False)
        optimizer = OPTIMIZERS["adam"](net.parameters())
        return train(net, hvd.DistributedOptimizer(optimizer), mine)

    alone = model()
    expected = train(alone, OPTIMIZERS["adam"](alone.parameters()), lambda tensor: tensor)
    assert_all_are(expected, on_ranks(2, program))


def test_missing_gradients_count_as_zeros():
    def program():
        parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), groups=1)
        for _ in range(2):
            optimizer.zero_grad()
            parameters[hvd.rank()].sum().backward()
            optimizer.step()
        return [parameter.item() for parameter in parameters]

    assert on_ranks(2, program) == [[-1.0, -1.0]] * 2


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients(sparse_as_dense):
    words = torch.tensor([0, 3, 3, 1])

    def program():
        table = nn.Embedding(5, 2, sparse=True)
        nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=sparse_as_dense
        )
        for _ in range(2):
            optimizer.zero_grad()
            table(mine(words)).sum().backward()
            optimizer.step()
            assert table.weight.grad.is_sparse  # for optimizers that take no other, as SparseAdam
            assert table.weight.grad.sparse_dim() == 1
        return table.weight.detach().tolist()

    once = [1.0, 1.0, 0.0, 2.0, 0.0]
    expected = [[-value, -value] for value in once]
    assert on_ranks(2, program) == [expected] * 2


def test_two_optimizers_may_have_the_same_names_at_once():
    def program():
        nets = [nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]
        for net in nets:
            nn.init.zeros_(net.weight)
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(n.parameters(), lr=1.0), n.named_parameters())
            for n in nets
        ]
        one = torch.full((1, 1), float(hvd.rank()))
        (nets[0](one) + 2 * nets[1](one)).sum().backward()
        for optimizer in optimizers[:: 1 if hvd.rank() else -1]:
            optimizer.step()
        return [net.weight.item() for net in nets]

    assert on_ranks(2, program) == [[-0.5, -1.0]] * 2


@pytest.mark.parametrize("order", ["plain", "unscale", "synchronize"])
@pytest.mark.filterwarnings(WITHOUT_SKIPPING)
def test_a_gradient_scaler_decides_alike_on_all_ranks(order):
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        after = []
        for factor in (1.0, float("inf") if hvd.rank() else 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            if order == "synchronize":
                optimizer.synchronize()
            if order == "unscale":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_([weight], 1.0)
            scaler.step(optimizer)
            scaler.update()
            after.append((round(weight.item(), 3), scaler.get_scale()))
        return after

    # The second step is skipped by both, though only one of them has seen an infinity.
    assert on_ranks(2, program) == [[(-1.0, 4.0), (-1.0, 2.0), (-2.0, 2.0)]] * 2


def test_adversaries_each_with_an_optimizer():
    def train(part, wrap):
        generator, judge = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        nn.init.constant_(generator.weight, 2.0)
        nn.init.constant_(judge.weight, 3.0)
        optimizers = [wrap(torch.optim.SGD(net.parameters(), lr=0.1)) for net in (generator, judge)]
        noise = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        for _ in range(2):
            optimizers[0].zero_grad()
            judge(generator(part(noise))).square().mean().backward()  # reaches the judge, too
            optimizers[0].step()
            judge.zero_grad()  # the module's
            judge(generator(part(noise)).detach()).square().mean().backward()
            optimizers[1].step()
        return [*values(generator), *values(judge)]

    def program():
        return train(mine, hvd.DistributedOptimizer)

    assert_all_are(train(lambda tensor: tensor, lambda o: o), on_ranks(2, program))


def test_a_rank_without_data_joins():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        for _ in range(1 + 2 * hvd.rank()):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        last = hvd.join()
        hvd.broadcast_parameters([weight], root_rank=last)
        return last, weight.item()

    assert on_ranks(2, program) == [(1, -2.0)] * 2


def test_a_parameter_group_added_later_is_reduced():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([one], lr=1.0))
        for step in range(3):
            if step == 1:
                optimizer.add_param_group({"params": [two]})
            optimizer.zero_grad()
            ((one + two) * hvd.rank()).sum().backward()
            optimizer.step()
            two.grad = None if step == 0 else two.grad
        return one.item(), two.item()

    assert on_ranks(2, program) == [(-1.5, -1.0)] * 2


def test_bfloat16_parameters():
    def program():
        weight = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        (weight * hvd.rank()).sum().backward()
        optimizer.step()
        return weight.tolist()

    assert on_ranks(2, program) == [[-0.5] * 3] * 2


@pytest.mark.slow  # the compiler takes its time
def test_a_compiled_model():
    def program():
        net = model()
        compiled = torch.compile(net, backend="aot_eager")
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()))
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(compiled, *map(mine, batch(step))).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e6)
            optimizer.step()
        return values(net)

    assert_all_are(in_one_process(OPTIMIZERS["sgd"]), on_ranks(2, program))


def test_names_may_be_those_of_the_whole_model_where_an_optimizer_has_a_part_of_it():
    def program():
        net = model()
        parts = net[0], net[2]
        optimizers = [
            hvd.DistributedOptimizer(
                torch.optim.SGD(part.parameters(), lr=0.1), net.named_parameters()
            )
            for part in parts
        ]
        loss_of(net[2], mine(torch.ones(4, 8).double()), mine(torch.arange(4) % 3)).backward()
        optimizers[1].step()
        untouched = [parameter.grad for parameter in parts[0].parameters()]
        net.zero_grad()
        inputs, labels = batch(0)
        loss_of(net, mine(inputs), mine(labels)).backward()
        optimizers[0].step()
        return untouched, values(net)

    net = model()
    loss_of(net[2], torch.ones(4, 8).double(), torch.arange(4) % 3).backward()
    with torch.no_grad():
        for parameter in net[2].parameters():
            parameter -= 0.1 * parameter.grad
    loss_of(net, *batch(0)).backward()
    with torch.no_grad():
        for parameter in net[0].parameters():
            parameter -= 0.1 * parameter.grad
    results = on_ranks(2, program)
    assert [untouched for untouched, _ in results] == [[None, None]] * 2
    assert_all_are(values(net), [result for _, result in results])
