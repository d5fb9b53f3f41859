"""A classifier of handwritten digits that ends in a checkpoint when it is told to, and goes on.

A minute before the time of its job is over Slurm sends a signal, which `slurm.sbatch` passes on.
One rank may hear it a step before another, so after each step they compare: all end after the same
one, rank 0 writes what is needed to go on, and the exit status is 143. Started again, whether by
`--requeue` or by hand, with any number of ranks, the training goes on from there.

    cd examples; sbatch slurm.sbatch [epochs]
    lockstitch run -n 2 examples/slurm_training.py CHECKPOINT [epochs]
"""

import os
import signal
import sys
import threading
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

from lockstitch import hvd

BATCH = 64
TEST_IMAGES = 357
TOLD_TO_END = 128 + signal.SIGTERM


def digits():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return (torch.tensor(images)[order] / 16).float(), torch.tensor(labels)[order]


def own_batch(step, count):
    """Returns which images this rank learns from in a step: its part of those that all learn from,
    which are the same whatever the number of ranks is."""
    epoch, within = divmod(step, count // BATCH)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return order[within * BATCH : (within + 1) * BATCH][hvd.rank() :: hvd.size()]


def save(path, step, model, optimizer):
    """Writes a checkpoint: it is there as a whole, or the former one still is."""
    unfinished = path.with_suffix(".unfinished")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def load(path, model, optimizer):
    """Returns the step to begin with: that of the checkpoint, if there is one."""
    step = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        if hvd.rank() == 0:
            print(f"goes on at step {step} with {hvd.size()} ranks", flush=True)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return step


def main():
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())  # before hvd.init: then it is ours
    hvd.init()
    path = Path(sys.argv[1])
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    images, labels = digits()
    learning = len(images) - TEST_IMAGES

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    steps_per_epoch = learning // BATCH
    for step in range(load(path, model, optimizer), epochs * steps_per_epoch):
        if step % steps_per_epoch == 0 and hvd.rank() == 0:
            print(f"epoch {step // steps_per_epoch}", flush=True)
        own = TEST_IMAGES + own_batch(step, learning)
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(images[own]), labels[own], reduction="sum")
        (losses * hvd.size() / BATCH).backward()  # the ranks' average is the mean over the batch
        optimizer.step()
        heard = torch.tensor([float(told_to_end.is_set())])
        if hvd.allreduce(heard, op=hvd.Max).item():
            if hvd.rank() == 0:
                save(path, step + 1, model, optimizer)
                print(f"saved after step {step + 1}, as told", flush=True)
            hvd.shutdown()
            sys.exit(TOLD_TO_END)

    with torch.no_grad():
        right = (model(images[:TEST_IMAGES]).argmax(1) == labels[:TEST_IMAGES]).float().mean()
    if hvd.rank() == 0:
        save(path, epochs * steps_per_epoch, model, optimizer)
        weights = nn.utils.parameters_to_vector(model.parameters())
        print(
            f"{right:.1%} of the test images are right, the weights have norm {weights.norm():.5f}"
        )
    hvd.shutdown()


main()
