"""One parameter server, two trainers that train one model at the same time.

The server owns the model; a trainer sends it images, gets logits back, runs backward through the
call, and steps a distributed optimizer. Nobody waits for anybody (Hogwild): one trainer's step may
fall between the other one's forward and backward. The data are scikit-learn's handwritten digits,
shared out among the trainers.

    lockstitch run -n 3 examples/parameter_server.py [epochs]
"""

import os
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.optim import DistributedOptimizer

BATCH = 32
TEST_IMAGES = 360


class ParameterServer:
    """Owns the model; its methods are called by the trainers through a remote reference."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images):
        return self.model(images)

    def parameters(self):
        return [rpc.RRef(parameter) for parameter in self.model.parameters()]


def digits():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]


def train(server, part, parts, epochs):
    """Runs on a trainer: learn from this part of the images; return the mean loss of each epoch."""
    images, labels = (values[TEST_IMAGES:][part::parts] for values in digits())
    optimizer = DistributedOptimizer(optim.SGD, server.rpc_sync().parameters(), lr=0.2)
    mean_losses = []
    for epoch in range(epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(BATCH):
            with dist_autograd.context() as context_id:
                logits = server.rpc_sync().forward(images[batch])
                loss = nn.functional.cross_entropy(logits, labels[batch])
                dist_autograd.backward(context_id, [loss])
                optimizer.step(context_id)
            losses.append(loss.item())
        mean_losses.append(sum(losses) / len(losses))
        print(f"trainer{part + 1}: epoch {epoch + 1:2}  loss {mean_losses[-1]:.4f}", flush=True)
    return mean_losses


def serve(trainers, epochs):
    """Runs on the server: start every trainer, wait for all, test what they taught the model."""
    server = rpc.RRef(ParameterServer())
    torch.futures.wait_all(
        [
            rpc.rpc_async(trainer, train, args=(server, part, len(trainers), epochs), timeout=0)
            for part, trainer in enumerate(trainers)
        ]
    )
    images, labels = (values[:TEST_IMAGES] for values in digits())
    with torch.no_grad():
        right = server.local_value().forward(images).argmax(1) == labels
    print(f"server: {right.double().mean():.1%} of {TEST_IMAGES} unseen digits are read correctly")


def main():
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        sys.exit("start it so: lockstitch run -n 3 examples/parameter_server.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    names = ["server", *(f"trainer{part}" for part in range(1, world_size))]
    torch.set_num_threads(1)  # several processes share the cores

    rpc.init_rpc(names[rank], rank=rank, world_size=world_size)
    if rank == 0:
        serve(names[1:], epochs)
    rpc.shutdown()


if __name__ == "__main__":
    main()
