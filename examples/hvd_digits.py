"""A classifier of handwritten digits, trained by all ranks together in the manner of Horovod.

Each rank learns from its part of every batch; gradients are averaged while backward still runs. For
comparison rank 0 then trains the same model alone on the whole batches.

    lockstitch run -n 2 examples/hvd_digits.py [epochs]    # or: torchrun, or plain python
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

from lockstitch import hvd

BATCH = 96
TEST_IMAGES = 357  # leaves 1,440 to learn from: whole batches


def digits():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images)[order] / 16, torch.tensor(labels)[order]


def train(model, optimizer, epochs, part, parts):
    """Learns from every `parts`-th image of each batch; prints the mean loss over all ranks."""
    images, labels = (values[TEST_IMAGES:] for values in digits())
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        total = 0.0
        for batch in order.split(BATCH):
            mine = batch[part::parts]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            total += loss.detach() * BATCH / len(labels)
        if parts > 1:
            total = hvd.allreduce(total, name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch}  loss {total:.4f}")


def build(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()
    return model, optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def main():
    hvd.init()
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 6

    model, optimizer = build(seed=hvd.rank())  # differs between ranks …
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # … until here
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, epochs, hvd.rank(), hvd.size())

    images, labels = (values[:TEST_IMAGES] for values in digits())
    right = (model(images).argmax(1) == labels).double().mean()
    same = hvd.allgather(nn.utils.parameters_to_vector(model.parameters()).detach()[None])
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: {right:.1%} of the test images are right")
        print("the same training in one process:")
        alone, optimizer = build(seed=0)
        train(alone, optimizer, epochs, part=0, parts=1)
        whole = nn.utils.parameters_to_vector(alone.parameters()).detach()
        print(f"difference between ranks {(same - same[0]).abs().max():.1e}")
        print(f"difference from one process {(same[0] - whole).abs().max():.1e}")
    hvd.shutdown()


main()
