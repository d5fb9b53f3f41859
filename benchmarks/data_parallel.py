"""Steps of five models on two slots: `python -m benchmarks.data_parallel [rounds]`.

For each model the median time of a step (forward, backward, an optimizer's step), in ms:

    plain          the module, with as many threads as torch takes by itself
    one            the module with one thread
    original       what torch.nn.DataParallel does: replicas for each call, threads, backward here
    thread, fork   slots of these kinds

Rounds are interleaved, so that a machine that slows down slows them all.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

from lockstitch.nn import DataParallel, parallel


class Loop(nn.Module):
    """An LSTM cell, step by step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(32, 64)

    def forward(self, x):
        state = None
        for i in range(x.shape[1]):
            state = self.cell(x[:, i], state)
        return state[0]


class Small(nn.Module):
    """Five hundred small operators."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x):
        for _ in range(250):
            x = torch.tanh(x * self.scale)
        return x


class Original(nn.Module):
    """The original's algorithm, on the CPU."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        places = ["cpu", "cpu"]
        inputs, named = parallel.scatter_kwargs((x,), {}, places)
        replicas = parallel.replicate(self.module, places)
        return parallel.gather(parallel.parallel_apply(replicas, inputs, named, places), -1)


def models():
    conv = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(2)]
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    mlp = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64)]
    return {
        "LSTM loop": (Loop(), torch.randn(64, 50, 32)),
        "small operators": (Small(), torch.randn(64, 16)),
        "MLP": (nn.Sequential(*mlp), torch.randn(256, 512)),
        "conv": (nn.Sequential(*conv), torch.randn(16, 3, 32, 32)),
        "transformer": (layer, torch.randn(16, 32, 128)),
    }


def step(model, optimizer, x):
    start = time.perf_counter()
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    return 1e3 * (time.perf_counter() - start)


def measure(module, x, rounds):
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    threads = torch.get_num_threads()
    slots = {kind: DataParallel(module, [kind, kind]) for kind in ("thread", "fork")}
    ways = {"plain": module, "one": module, "original": Original(module), **slots}
    times = {name: [] for name in ways}
    for i in range(rounds + 3):
        for name, model in ways.items():
            torch.set_num_threads(1 if name == "one" else threads)
            elapsed = step(model, optimizer, x)
            if i >= 3:
                times[name].append(elapsed)
    torch.set_num_threads(threads)
    for model in slots.values():
        model.close()
    return {name: statistics.median(each) for name, each in times.items()}


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    for name, (module, x) in models().items():
        figures = measure(module, x, rounds)
        print(f"{name:16}", *(f"{way} {ms:7.2f}" for way, ms in figures.items()), flush=True)


if __name__ == "__main__":
    main()
