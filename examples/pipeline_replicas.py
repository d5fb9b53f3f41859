"""Two replicas of a pipeline of two stages: data parallelism around pipeline parallelism.

    replica 0:  worker0 (stage 0) ──▶ worker2 (stage 1)
    replica 1:  worker1 (stage 0) ──▶ worker3 (stage 1)

A replica is driven by the worker of its first stage, with batches of its own. All four workers are
ranks of `hvd`, too: the two that have the same stage are a process set, in which its gradients are
averaged. That is the stage's optimizer's business: `DistributedOptimizer` makes it on each owner by
`averaging`. At the end all is compared with one process that was given all batches.

    lockstitch run -n 4 examples/pipeline_replicas.py [steps]
"""

import os
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import hvd, rpc
from lockstitch.nn import Pipeline, RemoteModule
from lockstitch.optim import DistributedOptimizer

REPLICAS, BATCH, CHUNKS, RATE = 2, 64, 4, 0.1
STAGES = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])]  # the ranks that have each


def make_stage(number):
    """Whoever makes it gets the same weights."""
    torch.manual_seed(number)
    made = nn.Sequential(nn.Linear(64, 96), nn.Tanh()) if number == 0 else nn.Linear(96, 10)
    return made.double()


def averaging(parameters, **options):
    """The optimizer of a stage on its owner: it steps with the average of all replicas."""
    stage = next(each for each in STAGES if each.included())
    return hvd.DistributedOptimizer(optim.SGD(parameters, **options), process_set=stage)


def batches(replica, steps):
    """Those of one replica: every other digit."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16)[replica::REPLICAS]
    labels = torch.tensor(digits.target)[replica::REPLICAS]
    for step in range(steps):
        rows = (torch.arange(BATCH) + step * BATCH) % len(images)
        yield images[rows], labels[rows]


def train(replica, steps):
    """Drives one replica; returns its losses and the numbers of its stages."""
    stages = [RemoteModule(f"worker{replica + REPLICAS * n}", make_stage, (n,)) for n in (0, 1)]
    pipeline = Pipeline(stages, schedule="1f1b", chunks=CHUNKS)
    optimizer = DistributedOptimizer(averaging, pipeline.remote_parameters(), lr=RATE, momentum=0.9)
    losses = []
    for images, labels in batches(replica, steps):
        with dist_autograd.context() as context_id:
            loss = pipeline.step(context_id, images, labels, nn.functional.cross_entropy)
            optimizer.step(context_id)
        losses.append(loss.item())
    numbers = [each.to_here().detach() for each in pipeline.remote_parameters()]
    return losses, nn.utils.parameters_to_vector(numbers)


def train_in_one_process(steps):
    """The same: the mean of the replicas' losses is stepped."""
    model = nn.Sequential(make_stage(0), make_stage(1))
    optimizer = optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for of_all in zip(*(batches(replica, steps) for replica in range(REPLICAS)), strict=True):
        optimizer.zero_grad()
        for images, labels in of_all:
            (nn.functional.cross_entropy(model(images), labels) / REPLICAS).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def main():
    if os.environ.get("WORLD_SIZE") != "4":
        sys.exit("start it so: lockstitch run -n 4 examples/pipeline_replicas.py")
    rank, steps = int(os.environ["RANK"]), int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.set_num_threads(1)  # several processes share the cores
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=4)
    hvd.init(process_sets=STAGES)
    if rank == 0:
        running = [
            rpc.rpc_async(f"worker{replica}", train, (replica, steps), timeout=0)
            for replica in range(REPLICAS)
        ]
        (losses, one), (_, other) = rpc.wait_all(running)
        print(f"loss at first {losses[0]:.3f}")
        print(f"loss at last {sum(losses[-10:]) / 10:.3f}")
        print(f"difference between replicas {(one - other).abs().max():.1e}")
        print(f"difference from one process {(one - train_in_one_process(steps)).abs().max():.1e}")
    rpc.shutdown()
    hvd.shutdown()


main()
