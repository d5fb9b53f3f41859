"""A model in three stages on three workers, fed with micro-batches.

While stage 3 works on one micro-batch, stage 2 is already at the next one and stage 1 at the one
after it. The stages hand tensors on to each other by reference; the trainer, which also owns the
first stage, never sees the ones between. One backward call runs through all stages and
all micro-batches. Every step is compared with the same model in one process. (It is made of calls
and references alone, so it runs on torch.distributed.rpc, too; `lockstitch.nn.Pipeline`, in
transformer_pipeline.py, does this and more.)

    lockstitch run -n 3 examples/pipeline.py [steps]
"""

import os
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.optim import DistributedOptimizer

BATCH = 128
MICRO_BATCH = 32
LEARNING_RATE = 0.5


def build_layers(number):
    """The layers of one stage; whoever builds them gets the same weights."""
    torch.manual_seed(number)
    layers = [
        lambda: nn.Sequential(nn.Linear(64, 96), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(96, 96), nn.Tanh()),
        lambda: nn.Linear(96, 10),
    ]
    return layers[number]().double()


class Stage:
    """One stage on its worker; takes a reference to its input, wherever that lives."""

    def __init__(self, number):
        self.layers = build_layers(number)

    def forward(self, input_rref):
        return self.layers(input_rref.to_here())

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.layers.parameters()]

    def gradients(self, context_id):
        gradients = dist_autograd.get_gradients(context_id)
        return [gradients[parameter] for parameter in self.layers.parameters()]


class Pipeline:
    """Stages chained by references: a micro-batch flows on while the next one enters."""

    def __init__(self, workers):
        self.stages = [rpc.remote(worker, Stage, (n,)) for n, worker in enumerate(workers)]

    def forward(self, batch):
        first, second, third = self.stages
        logits = []
        for micro_batch in batch.split(MICRO_BATCH):
            hidden = first.remote().forward(rpc.RRef(micro_batch))
            hidden = second.remote().forward(hidden)
            logits.append(third.rpc_async().forward(hidden))
        return torch.cat(torch.futures.wait_all(logits))

    def parameter_rrefs(self):
        return [rref for stage in self.stages for rref in stage.rpc_sync().parameter_rrefs()]

    def gradients(self, context_id):
        return [grad for stage in self.stages for grad in stage.rpc_sync().gradients(context_id)]


def train(workers, steps):
    images, labels = (torch.tensor(values) for values in load_digits(return_X_y=True))
    pipeline = Pipeline(workers)
    optimizer = DistributedOptimizer(optim.SGD, pipeline.parameter_rrefs(), lr=LEARNING_RATE)

    twin = nn.Sequential(*(build_layers(number) for number in range(3)))
    twin_optimizer = optim.SGD(twin.parameters(), lr=LEARNING_RATE)

    for step in range(steps):
        chosen = torch.randint(len(labels), (BATCH,))
        batch, target = images[chosen] / 16, labels[chosen]

        with dist_autograd.context() as context_id:
            loss = nn.functional.cross_entropy(pipeline.forward(batch), target)
            dist_autograd.backward(context_id, [loss])
            gradients = pipeline.gradients(context_id)
            optimizer.step(context_id)

        twin_optimizer.zero_grad()
        twin_loss = nn.functional.cross_entropy(twin(batch), target)
        twin_loss.backward()
        difference = max(
            (gradient - parameter.grad).abs().max().item()
            for gradient, parameter in zip(gradients, twin.parameters(), strict=True)
        )
        twin_optimizer.step()

        print(
            f"step {step + 1:3}  loss {loss.item():.6f}  in one process {twin_loss.item():.6f}"
            f"  greatest difference of gradients {difference:.1e}",
            flush=True,
        )


def main():
    if os.environ.get("WORLD_SIZE") != "3":
        sys.exit("start it so: lockstitch run -n 3 examples/pipeline.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    workers = ["stage1", "stage2", "stage3"]
    torch.set_num_threads(1)  # several processes share the cores

    rpc.init_rpc(workers[rank], rank=rank, world_size=world_size)
    if rank == 0:
        train(workers, steps)
    rpc.shutdown()


if __name__ == "__main__":
    main()
