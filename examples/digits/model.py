"""One model in three parts, twice: split over three processes, and whole in one.

    worker1            worker2             trainer
    stem: conv  ─────▶ body: conv, pool ─▶ head: linear ─▶ loss
          ◀──────────        ◀───────────        gradients

Both classes offer the same three methods, so that one training loop drives either.
"""

import os

import torch
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.optim import DistributedOptimizer

PARTS = {
    "stem": lambda: nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
    "body": lambda: nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    "head": lambda: nn.Sequential(nn.Flatten(), nn.Linear(512, 10)),
}
SGD = {"lr": 0.05, "momentum": 0.9}


def build_part(name, seed):
    """A part with its first weights, the same wherever it is built."""
    torch.manual_seed(seed + list(PARTS).index(name))
    return PARTS[name]().double()


class RemotePart:
    """A part in another process. Its input is a reference: the part fetches it from its owner."""

    def __init__(self, name, seed):
        self.layers = build_part(name, seed)

    def forward(self, input_rref):
        return self.layers(input_rref.to_here())

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.layers.parameters()]

    def parameters(self):
        return [parameter.detach() for parameter in self.layers.parameters()]

    def process(self):
        return os.getpid()


class SplitModel:
    """Stem and body on two workers, the head here; trained by distributed autograd."""

    def __init__(self, seed):
        self.stem = rpc.remote("worker1", RemotePart, args=("stem", seed))
        self.body = rpc.remote("worker2", RemotePart, args=("body", seed))
        self.head = build_part("head", seed)
        remote = self.stem.rpc_sync().parameter_rrefs() + self.body.rpc_sync().parameter_rrefs()
        local = [rpc.RRef(parameter) for parameter in self.head.parameters()]
        self.optimizer = DistributedOptimizer(optim.SGD, remote + local, **SGD)

    def predict(self, images):
        hidden = self.stem.remote().forward(rpc.RRef(images))  # stays on worker1 …
        features = self.body.rpc_sync().forward(hidden)  # … until worker2 fetches it there
        return self.head(features)

    def step(self, images, labels):
        with dist_autograd.context() as context_id:
            loss = nn.functional.cross_entropy(self.predict(images), labels)
            dist_autograd.backward(context_id, [loss])
            self.optimizer.step(context_id)
        return loss.item()

    def parameters(self):
        here = [parameter.detach() for parameter in self.head.parameters()]
        return self.stem.rpc_sync().parameters() + self.body.rpc_sync().parameters() + here

    def processes(self):
        """The process numbers of the three parts."""
        return [self.stem.rpc_sync().process(), self.body.rpc_sync().process(), os.getpid()]


class WholeModel:
    """The three parts in this process, trained by plain PyTorch."""

    def __init__(self, seed):
        self.layers = nn.Sequential(*(build_part(name, seed) for name in PARTS))
        self.optimizer = optim.SGD(self.layers.parameters(), **SGD)

    def predict(self, images):
        return self.layers(images)

    def step(self, images, labels):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.predict(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def parameters(self):
        return [parameter.detach() for parameter in self.layers.parameters()]
