"""Learning to learn, over workers: MAML on sine waves (Finn, Abbeel and Levine, 2017).

Each task is a wave of its own amplitude and phase, of which ten points are given. From weights that
all tasks share, one takes two steps down the loss of these points; what is trained is how well the
weights do *after* that, so the outer gradient goes through the inner one: a second derivative. The
lower half of the model lives on worker 1 and the upper half on worker 2, with their parameters,
their gradients and the weights that a task makes of them; worker 0 trains.

At the end worker 0 does the same alone, with plain PyTorch, and compares the weights.

    lockstitch run -n 3 examples/maml.py [rounds]
"""

import itertools
import math
import os
import sys

import torch
from torch import nn, optim
from torch.func import functional_call

from lockstitch import autograd, rpc
from lockstitch.nn import RemoteModule
from lockstitch.optim import DistributedOptimizer

INNER_STEPS = 2
INNER_RATE = 0.02
OUTER_RATE = 0.005
TASKS = 4  # per round
POINTS = 10


class Half(nn.Module):
    """Half of the model, whose weights a task may have changed."""

    def __init__(self, seed, *layers):
        super().__init__()
        torch.manual_seed(seed)
        sizes = itertools.pairwise(layers)
        each = [part for size in sizes for part in (nn.Linear(*size), nn.Tanh())]
        self.layers = nn.Sequential(*each[: -1 if layers[-1] == 1 else None]).double()

    def forward(self, x, steps):
        """Runs with the weights after `steps`: for each, the gradients of all parameters."""
        weights = dict(self.layers.named_parameters())
        for gradients in steps:
            pairs = zip(weights.items(), gradients, strict=True)
            weights = {name: weight - INNER_RATE * here(step) for (name, weight), step in pairs}
        return functional_call(self.layers, weights, (x,))


LOWER, UPPER = (1, 1, 32), (2, 32, 32, 1)  # seed, and sizes of the layers


def here(gradient):
    """The gradient itself: it stays on the worker of its parameter, which holds references."""
    return gradient.local_value() if isinstance(gradient, rpc.RRef) else gradient


def draw(generator):
    """The points of one task to adapt to, and those to be judged by."""
    amplitude = 0.1 + 4.9 * torch.rand(1, generator=generator, dtype=torch.float64)
    phase = math.pi * torch.rand(1, generator=generator, dtype=torch.float64)
    x = 10 * torch.rand(2, POINTS, 1, generator=generator, dtype=torch.float64) - 5
    return x, amplitude * torch.sin(x - phase)


def adapted_loss(lower, upper, differentiate, task):
    """The loss of a task after its inner steps; `differentiate(loss)` gives the gradients of the
    lower half's parameters and of the upper half's."""
    (x, judged_x), (y, judged_y) = task
    lower_steps, upper_steps = [], []
    for _ in range(INNER_STEPS):
        loss = nn.functional.mse_loss(upper(lower(x, lower_steps), upper_steps), y)
        lower_gradients, upper_gradients = differentiate(loss)
        lower_steps.append(lower_gradients)
        upper_steps.append(upper_gradients)
    output = upper(lower(judged_x, lower_steps), upper_steps)
    return nn.functional.mse_loss(output, judged_y)


def train_over_workers(rounds):
    lower, upper = RemoteModule("worker1", Half, LOWER), RemoteModule("worker2", Half, UPPER)
    lowers, uppers = lower.remote_parameters(), upper.remote_parameters()
    optimizer = DistributedOptimizer(optim.Adam, lowers + uppers, lr=OUTER_RATE)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(rounds):
        with autograd.context() as context_id:

            def differentiate(loss, context_id=context_id):
                found = autograd.grad(context_id, loss, lowers + uppers, create_graph=True)
                return found[: len(lowers)], found[len(lowers) :]

            tasks = [draw(generator) for _ in range(TASKS)]
            each = [adapted_loss(lower, upper, differentiate, task) for task in tasks]
            autograd.backward(context_id, [sum(each) / TASKS])
            optimizer.step(context_id)
        losses.append(sum(each).item() / TASKS)
    return losses, [weight.to_here().detach() for weight in lowers + uppers]


def train_alone(rounds):
    lower, upper = Half(*LOWER), Half(*UPPER)
    lowers, uppers = list(lower.parameters()), list(upper.parameters())
    optimizer = optim.Adam(lowers + uppers, lr=OUTER_RATE)
    generator = torch.Generator().manual_seed(0)
    losses = []

    def differentiate(loss):
        found = torch.autograd.grad(loss, lowers + uppers, create_graph=True)
        return found[: len(lowers)], found[len(lowers) :]

    for _ in range(rounds):
        tasks = [draw(generator) for _ in range(TASKS)]
        each = [adapted_loss(lower, upper, differentiate, task) for task in tasks]
        optimizer.zero_grad()
        (sum(each) / TASKS).backward()
        optimizer.step()
        losses.append(sum(each).item() / TASKS)
    return losses, [weight.detach() for weight in lowers + uppers]


def main():
    if os.environ.get("WORLD_SIZE") != "3":
        sys.exit("start it so: lockstitch run -n 3 examples/maml.py")
    rank, rounds = int(os.environ["RANK"]), int(sys.argv[1]) if len(sys.argv) > 1 else 60
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
    if rank == 0:
        losses, weights = train_over_workers(rounds)
        tenth = max(1, rounds // 10)
        for name, part in (("first", losses[:tenth]), ("last", losses[-tenth:])):
            print(f"loss after {INNER_STEPS} steps, {name} rounds: {sum(part) / len(part):.3f}")
        _, plain = train_alone(rounds)
        pairs = zip(weights, plain, strict=True)
        difference = max((one - other).abs().max().item() for one, other in pairs)
        print(f"greatest difference from one process: {difference:.1e}")
    rpc.shutdown()


if __name__ == "__main__":
    main()
