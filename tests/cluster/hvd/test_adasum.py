from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.collectives.arithmetic import adasum
from tests.cluster.hvd.ranks import on_ranks

STEPS = 3


def batch(rank, step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank)).double()


def model():
    net = nn.Linear(4, 2).double()
    with torch.no_grad():
        net.weight.copy_(torch.arange(8.0).view(2, 4))
        net.bias.zero_()
    return net


def own_step(net, optimizer, rank, step):
    optimizer.zero_grad()
    net(batch(rank, step)).square().mean().backward()
    optimizer.step()


def by_hand(ranks):
    """Each rank steps with its own momentum; then Adasum of the changes."""
    nets = [model() for _ in range(ranks)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
    for step in range(STEPS):
        before = [parameter.detach().clone() for parameter in nets[0].parameters()]
        for rank in range(ranks):
            own_step(nets[rank], optimizers[rank], rank, step)
        with torch.no_grad():
            for place, start in enumerate(before):
                owns = [list(net.parameters())[place] for net in nets]
                together = start + adasum([own - start for own in owns])
                for own in owns:
                    own.copy_(together)
    return nets[0].weight.detach()


@pytest.mark.parametrize("ranks", [2, 4])
def test_changes_are_combined(ranks):
    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
            net.named_parameters(),
            op=hvd.Adasum,
        )
        assert type(optimizer).__name__ == "SGD"
        for step in range(STEPS):
            own_step(net, optimizer, hvd.rank(), step)
        return net.weight.detach()

    expected = by_hand(ranks)
    results = on_ranks(ranks, program)
    for weight in results:
        assert torch.equal(weight, results[0])
        torch.testing.assert_close(weight, expected)


def test_a_parameter_without_a_gradient_on_this_rank_takes_part():
    def program():
        parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Adasum)
        with optimizer.no_sync():
            parameters[hvd.rank()].sum().backward()
        optimizer.synchronize()
        optimizer.set_backward_passes_per_step(3)
        optimizer.step()
        return [parameter.item() for parameter in parameters]

    assert on_ranks(2, program) == [[-1.0, -1.0]] * 2


def test_its_synchronization_cannot_be_skipped():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
        with pytest.raises(AssertionError, match="cannot skip"):
            optimizer.skip_synchronize()

    on_ranks(1, program)


def test_a_number_of_ranks_that_is_no_power_of_two_is_refused():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
        weight.sum().backward()
        for asked in (
            optimizer.step,
            lambda: hvd.allreduce(weight, op=hvd.Adasum),
            lambda: hvd.grouped_allreduce_async_([weight.detach()], op=hvd.Adasum),
        ):
            with pytest.raises(NotImplementedError, match="power of two, but .* has 3"):
                asked()
        pair = hvd.add_process_set([0, 2])
        if not pair.included():
            return weight.item(), None
        combined = hvd.allreduce(torch.ones(1), op=hvd.Adasum, process_set=pair)
        return weight.item(), combined.item()

    assert on_ranks(3, program) == [(0.0, 1.0), (0.0, None), (0.0, 1.0)]
