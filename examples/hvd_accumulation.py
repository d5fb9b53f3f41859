"""A large batch in small pieces: gradients are accumulated, scaled, clipped, then stepped with.

Each piece goes forward in bfloat16 and backward with a scaled loss. Only the last piece of a batch
reduces; what `unscale_` and `clip_grad_norm_` see is reduced already, so all ranks clip by the same
norm. The last batch of an epoch is shorter and has fewer pieces.

    lockstitch run -n 2 examples/hvd_accumulation.py [epochs]
"""

import contextlib
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

from lockstitch import hvd

BATCH, PIECE, LARGEST_NORM = 128, 32, 0.5


def train_one_batch(model, optimizer, scaler, images, labels):
    """Returns the norm by which this rank has clipped."""
    optimizer.zero_grad()
    pieces = list(zip(images.split(PIECE), labels.split(PIECE), strict=True))
    for number, (some, their_labels) in enumerate(pieces, 1):
        is_last = number == len(pieces)
        with contextlib.nullcontext() if is_last else optimizer.no_sync():
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(some)
            loss = nn.functional.cross_entropy(logits.float(), their_labels, reduction="sum")
            scaler.scale(loss / len(labels)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
    scaler.step(optimizer)
    scaler.update()
    return norm


def main():
    torch.set_num_threads(1)  # several processes share the cores
    hvd.init()
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.manual_seed(0)  # the same model on all ranks
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    mine = torch.randperm(len(labels))[: len(labels) // 2 * 2][hvd.rank() :: hvd.size()]

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    norms = []
    for _ in range(epochs):
        norms += [
            train_one_batch(model, optimizer, scaler, images[batch], labels[batch])
            for batch in mine.split(BATCH)
        ]

    right = (model(images).argmax(1) == labels).double().mean()
    of_all = hvd.allgather(torch.stack(norms)[None])
    if hvd.rank() == 0:
        print(f"right: {right:.1%}")
        print(f"steps clipped: {int((of_all[0] > LARGEST_NORM).sum())} of {len(norms)}")
        print(f"all ranks clipped alike: {bool((of_all == of_all[0]).all())}")
    hvd.shutdown()


main()
