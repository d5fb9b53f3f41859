"""Replicas and a parameter server in one backward pass: PyTorch's "DDP + RPC" program.

Two trainers have the dense part of a model each, whose gradients are averaged between them; the
embedding lives on a third worker, behind a remote reference. One autograd context and one backward
pass reach both. Every trainer then steps its replica with the average, and the embedding's
optimizer on its owner.

    lockstitch run -n 3 examples/hvd_parameter_server.py [steps]
"""

import os
import sys

import torch
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import hvd, rpc
from lockstitch.optim import DistributedOptimizer

TRAINERS = [1, 2]
WORDS, WIDTH = 500, 16


class Embedding:
    """Lives on the server."""

    def __init__(self):
        torch.manual_seed(0)
        self.table = nn.EmbeddingBag(WORDS, WIDTH)

    def look_up(self, words):
        return self.table(words)

    def parameters(self):
        return [rpc.RRef(parameter) for parameter in self.table.parameters()]


def batch(generator):
    """Words, and whether most of them are even numbers."""
    words = torch.randint(0, WORDS, (64, 9), generator=generator)
    return words, ((words % 2 == 0).sum(1) > 4).float()


def train(embedding, steps):
    """Runs on a trainer; returns its losses and the numbers of its replica."""
    hvd.init(comm=TRAINERS)
    torch.manual_seed(1)
    head = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))
    replica = hvd.DistributedOptimizer(optim.Adam(head.parameters(), lr=0.02))
    remote = DistributedOptimizer(optim.Adam, embedding.rpc_sync().parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for _ in range(steps):
        words, labels = batch(generator)
        with dist_autograd.context() as context_id:
            scores = head(embedding.rpc_sync().look_up(words))[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
            dist_autograd.backward(context_id, [loss])
            replica.step(context_id)
            remote.step(context_id)
        losses.append(loss.item())
    hvd.shutdown()
    return losses, nn.utils.parameters_to_vector(head.parameters()).detach()


def main():
    if os.environ.get("WORLD_SIZE") != "3":
        sys.exit("start it so: lockstitch run -n 3 examples/hvd_parameter_server.py")
    rank, steps = int(os.environ["RANK"]), int(sys.argv[1]) if len(sys.argv) > 1 else 80
    torch.set_num_threads(1)  # several processes share the cores
    rpc.init_rpc("server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=3)
    if rank == 0:
        embedding = rpc.RRef(Embedding())
        running = [
            rpc.rpc_async(f"trainer{each}", train, (embedding, steps), timeout=0)
            for each in TRAINERS
        ]
        (losses, one), (_, other) = rpc.wait_all(running)
        print(f"loss at first {losses[0]:.3f}")
        print(f"loss at last {sum(losses[-10:]) / 10:.3f}")
        print(f"difference between replicas {(one - other).abs().max():.1e}")
    rpc.shutdown()


main()
