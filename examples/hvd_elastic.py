"""A classifier of handwritten digits that goes on learning while workers die and come.

After each batch the state is committed. When a worker dies the others go back to the last commit,
share out what is left of the epoch, and go on; a new one gets the state from them. With `--crash`
the second worker kills itself in the second epoch.

    lockstitch run -np 2 --min-np 1 examples/hvd_elastic.py [epochs] [--crash]
"""

import os
import signal
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from lockstitch import hvd

BATCH = 32
TEST_IMAGES = 357
MAY_CRASH = "--crash" in sys.argv and os.environ.get("LOCKSTITCH_WORKER") == "1"


def digits():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return (torch.tensor(images)[order] / 16).float(), torch.tensor(labels)[order]


@hvd.elastic.run
def train(state, learning, epochs):
    while state.epoch < epochs:
        loader = DataLoader(learning, BATCH, sampler=state.sampler)
        for number, (images, labels) in enumerate(loader):
            if MAY_CRASH and state.epoch == 1 and number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            state.optimizer.zero_grad()
            nn.functional.cross_entropy(state.model(images), labels).backward()
            state.optimizer.step()
            state.sampler.record_batch(number, BATCH)
            state.commit()  # here workers come in, too
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} was finished by {hvd.size()} ranks")
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


def main():
    hvd.init()
    epochs = next(map(int, filter(str.isdigit, sys.argv[1:])), 6)
    images, labels = digits()
    learning = TensorDataset(images[TEST_IMAGES:], labels[TEST_IMAGES:])

    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(learning)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    train(state, learning, epochs)

    with torch.no_grad():
        right = (model(images[:TEST_IMAGES]).argmax(1) == labels[:TEST_IMAGES]).float().mean()
    same = hvd.allgather(nn.utils.parameters_to_vector(model.parameters()).detach()[None])
    if hvd.rank() == 0:
        print(f"{right:.1%} of the test images are right")
        print(f"difference between ranks {(same - same[0]).abs().max():.1e}")
    hvd.shutdown()


main()
