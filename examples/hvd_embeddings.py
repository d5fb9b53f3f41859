"""Sparse gradients: of a large embedding only the rows that a batch has used travel between ranks.

The task: tell from the words of a sentence which of four topics it is about. Each rank learns from
its own sentences; a row that both have used is averaged, all others are left alone.

    lockstitch run -n 2 examples/hvd_embeddings.py [steps]
"""

import sys

import torch
from torch import nn, optim

from lockstitch import hvd

WORDS, TOPICS, WIDTH, LENGTH = 40_000, 4, 16, 12


def sentences(count, generator):
    """Half of the words of a sentence are of its topic: words 4 k + topic."""
    topics = torch.randint(0, TOPICS, (count,), generator=generator)
    words = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    on_topic = words // TOPICS * TOPICS + topics[:, None]
    return torch.where(torch.rand(words.shape, generator=generator) < 0.5, on_topic, words), topics


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(WORDS, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, TOPICS)

    def forward(self, words):
        return self.head(self.table(words))


def main():
    torch.set_num_threads(1)  # several processes share the cores
    hvd.init()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    torch.manual_seed(0)
    model = Classifier()
    # An optimizer for each kind of gradient; both may have any names.
    optimizers = [
        hvd.DistributedOptimizer(optim.SparseAdam(model.table.parameters(), lr=0.05)),
        hvd.DistributedOptimizer(optim.Adam(model.head.parameters(), lr=0.01)),
    ]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    generator = torch.Generator().manual_seed(1 + hvd.rank())
    travelled = 0
    for _ in range(steps):
        words, topics = sentences(256, generator)
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), topics).backward()
        travelled += model.table.weight.grad.coalesce().values().shape[0]
        for optimizer in optimizers:
            optimizer.step()

    words, topics = sentences(2000, torch.Generator().manual_seed(0))
    right = (model(words).argmax(1) == topics).double().mean()
    table = model.table.weight.detach()
    differs = hvd.allreduce(table, op=hvd.Max) - hvd.allreduce(table, op=hvd.Min)
    if hvd.rank() == 0:
        print(f"right: {right:.1%}")
        print(f"rows per step: {travelled // steps} of {WORDS}")
        print(f"difference between ranks {differs.abs().max():.1e}")
    hvd.shutdown()


main()
