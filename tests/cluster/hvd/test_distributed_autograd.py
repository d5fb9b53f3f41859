"""PyTorch's "DDP + RPC" program: each trainer has a replica of the dense part, whose gradients are
averaged over the trainers; the embedding lives on a parameter server, behind a reference."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from lockstitch import autograd, hvd, rpc
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.job import active
from lockstitch.optim import DistributedOptimizer, clip_grad_norm_
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.collectives.ranks import in_threads

STEPS = 3
TRAINERS = ("trainer0", "trainer1")
WORDS = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])


class Table:
    """The embedding, on its server."""

    reference = None

    @staticmethod
    def find():
        return Table.reference

    def __init__(self):
        self.rows = nn.Parameter(torch.arange(8.0, dtype=torch.float64).view(4, 2) / 8)

    def look_up(self, words):
        return self.rows[words].mean(1)

    def parameter(self):
        return rpc.RRef(self.rows)

    def value(self):
        return self.rows.detach().clone()


def dense_part():
    net = nn.Linear(2, 1).double()
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.zero_()
    return net


def train(table, words, steps, limit=None):
    """One trainer's loop: one context, one backward pass through both parts. Gradients of the dense
    one are clipped to the norm `limit`."""
    net = dense_part()
    dense = hvd.DistributedOptimizer(optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    sparse = DistributedOptimizer(optim.SGD, [table.rpc_sync().parameter()], lr=0.1 / hvd.size())
    for _ in range(steps):
        hvd.barrier()  # both look up the same rows …
        with autograd.context() as context_id:
            rows = table.rpc_sync().look_up(words)
            hvd.barrier()  # … before either changes them
            loss = net(rows).square().mean()
            autograd.backward(context_id, [loss])
            if limit is None:
                dense.step(context_id)
            else:
                dense.synchronize(context_id)
                clip_grad_norm_(list(map(rpc.RRef, net.parameters())), context_id, limit)
                with dense.skip_synchronize():
                    dense.step(context_id)
            sparse.step(context_id)
            assert net.weight.grad is None
    return [parameter.detach() for parameter in net.parameters()]


def in_one_process(limit=torch.inf):
    table, net = Table(), dense_part()
    optimizer = optim.SGD([*net.parameters(), table.rows], lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(table.look_up(WORDS)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), limit)
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()], table.value()


@pytest.mark.parametrize("limit", [None, 0.1])
def test_replicas_and_a_remote_embedding_in_one_backward_pass(limit):
    with LocalCluster(("server", *TRAINERS)) as cluster, LocalSessions(2) as sessions:
        with cluster["server"].active():
            table = Table.reference = rpc.RRef(Table())

        def run(rank):
            with cluster[TRAINERS[rank]].active(), active(sessions[rank]):
                try:
                    table = rpc.rpc_sync("server", Table.find)
                    return train(table, WORDS.chunk(2)[rank], STEPS, limit)
                except BaseException:
                    sessions[rank].shutdown()  # the other one need not wait
                    raise

        replicas = in_threads(2, run)
        Table.reference = None
        rows = table.local_value().value()
        expected, expected_rows = in_one_process(torch.inf if limit is None else limit)
        for replica in replicas:
            for ours, theirs in zip(replica, expected, strict=True):
                torch.testing.assert_close(ours, theirs)
        assert all(map(torch.equal, *replicas))
        torch.testing.assert_close(rows, expected_rows)
