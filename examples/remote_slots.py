"""One line, and a model works through each batch on three processes: its own, and two workers.

`DataParallel` sends each worker a part of the batch, and the parameters once they have changed; the
gradients come back into `.grad`, so all else is an ordinary training loop. The same training in one
process ends at the same parameters.

    lockstitch run -n 3 examples/remote_slots.py [epochs]
"""

import copy
import os
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

from lockstitch import rpc
from lockstitch.nn import DataParallel

BATCH = 150
SLOTS = ["cpu", "worker1", "worker2"]  # the first one is always the caller


def load():
    images, labels = (torch.tensor(values) for values in load_digits(return_X_y=True))
    return images / 16, labels


def train(model, epochs):
    images, labels = load()
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    order = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(1350, generator=order).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen) / 1350
        print(f"epoch {epoch + 1:2}  loss {total:.4f}", flush=True)


def accuracy(model):
    images, labels = load()
    with torch.no_grad():
        return (model(images[1350:]).argmax(1) == labels[1350:]).double().mean().item()


def main():
    if os.environ.get("WORLD_SIZE") != "3":
        sys.exit("start it so: lockstitch run -n 3 examples/remote_slots.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)  # several processes share the cores

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 10)).double()
        twin = copy.deepcopy(module)

        model = DataParallel(module, SLOTS)
        train(model, epochs)
        print(f"of the digits it has not seen it knows {100 * accuracy(model):.1f} %")
        for slot in model.slots:
            print(f"{slot.name}: {slot.statistics}")
        model.close()

        print("the same training in one process:")
        train(twin, epochs)
        pairs = zip(module.parameters(), twin.parameters(), strict=True)
        difference = max((a - b).abs().max().item() for a, b in pairs)
        print(f"greatest difference from one process {difference:.1e}", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
