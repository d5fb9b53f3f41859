"""One line, and a model reads handwritten digits on two processes; the same model on one agrees.

`DataParallel` cuts each batch in two: one part is computed here, the other one in a forked process
that shares the parameters' memory. All else is an ordinary training loop.

    python examples/data_parallel_digits.py [epochs]
"""

import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

from lockstitch.nn import DataParallel

BATCH = 150


def load():
    images, labels = (torch.tensor(values) for values in load_digits(return_X_y=True))
    return images.view(-1, 1, 8, 8) / 16, labels


def train(model, epochs):
    images, labels = load()
    optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
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
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 10)),
    ).double()
    twin = copy.deepcopy(module)

    model = DataParallel(module, ["fork", "fork"])
    train(model, epochs)
    print(f"of the digits it has not seen it knows {100 * accuracy(model):.1f} %")
    for slot in model.slots:
        print(f"{slot.name}: {slot.statistics}")
    model.close()

    print("the same training in one process:")
    train(twin, epochs)
    pairs = zip(module.parameters(), twin.parameters(), strict=True)
    difference = max((a - b).abs().max().item() for a, b in pairs)
    print(f"greatest difference from the plain module {difference:.1e}")


if __name__ == "__main__":
    main()
