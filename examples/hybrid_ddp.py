"""A model of two parts: a large table on a server, and a dense part that every trainer has.

The embedding table is a `RemoteModule`, of which each trainer asks the rows that its batch needs.
The dense part is copied to all trainers, and torch's own `DistributedDataParallel` averages its
gradients, within the autograd context of each trainer: the program of PyTorch's tutorial on
combining DDP with RPC. At the end the trainers compare their dense parts with each other, and with
one process that was given all batches.

    lockstitch run -n 3 examples/hybrid_ddp.py [steps]
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.nn import RemoteModule
from lockstitch.optim import DistributedOptimizer

TRAINERS = 2
ROWS, WIDTH, CLASSES = 40, 16, 4
BATCH, WORDS = 64, 5
LEARNING_RATE = 1.0


def make_table():
    torch.manual_seed(1)
    return nn.EmbeddingBag(ROWS, WIDTH, mode="sum").double()


def make_dense():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES)).double()


def batch_of(trainer, step):
    """Bags of words; each word speaks for one class, and the bag is of the class of most."""
    generator = torch.Generator().manual_seed(1000 * step + trainer)
    words = torch.randint(ROWS, (BATCH, WORDS), generator=generator)
    votes = nn.functional.one_hot(words % CLASSES, CLASSES).sum(1)
    return words, votes.argmax(1)


class Hybrid(nn.Module):
    """The table is elsewhere, the dense part here and on the other trainers."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.dense = DistributedDataParallel(make_dense())

    def forward(self, words):
        return self.dense(self.table(words))


def train(table, trainer, meeting_point, steps):
    """On a trainer. Returns its losses and its dense part."""
    dist.init_process_group("gloo", f"file://{meeting_point}", rank=trainer, world_size=TRAINERS)
    model = Hybrid(table)
    parameters = table.remote_parameters() + [rpc.RRef(p) for p in model.dense.parameters()]
    optimizer = DistributedOptimizer(optim.SGD, parameters, lr=LEARNING_RATE)
    losses = []
    for step in range(steps):
        words, classes = batch_of(trainer, step)
        with dist_autograd.context() as context_id:
            loss = nn.functional.cross_entropy(model(words), classes)
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        losses.append(loss.item())
        dist.barrier()  # so that all ask the same table, and can be compared with one process
    dist.destroy_process_group()
    return losses, [parameter.detach() for parameter in model.dense.parameters()]


def train_in_one_process(steps):
    """The same: trainers step the table one after the other, and the dense part by their mean."""
    table, dense = make_table(), make_dense()
    optimizer = optim.SGD([*table.parameters(), *dense.parameters()], lr=LEARNING_RATE)
    for step in range(steps):
        optimizer.zero_grad()
        for words, classes in (batch_of(trainer, step) for trainer in range(TRAINERS)):
            nn.functional.cross_entropy(dense(table(words)), classes).backward()
        for parameter in dense.parameters():
            parameter.grad /= TRAINERS
        optimizer.step()
    return table, dense


def compare(results, table, steps):
    (losses, first), (_, second) = results
    for step in range(0, steps, max(1, steps // 5)):
        print(f"step {step + 1:3}  loss {losses[step]:.4f}", flush=True)
    alone, dense = train_in_one_process(steps)
    between = max((a - b).abs().max().item() for a, b in zip(first, second, strict=True))
    print(f"greatest difference between trainers {between:.1e}")
    ours = [table.weight.detach(), *first]
    theirs = [alone.weight, *dense.parameters()]
    apart = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    print(f"greatest difference from one process {apart:.1e}", flush=True)


def main():
    if os.environ.get("WORLD_SIZE") != "3":
        sys.exit("start it so: lockstitch run -n 3 examples/hybrid_ddp.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    names = [*(f"trainer{n}" for n in range(TRAINERS)), "server"]
    torch.set_num_threads(1)  # several processes share the cores
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all trainers are on this machine

    rpc.init_rpc(names[rank], rank=rank, world_size=world_size)
    if names[rank] == "server":
        table = RemoteModule("server/cpu", make_table)
        with tempfile.TemporaryDirectory() as folder:
            meeting_point = os.path.join(folder, "trainers")
            trainers = [
                rpc.rpc_async(names[n], train, (table, n, meeting_point, steps), timeout=0)
                for n in range(TRAINERS)
            ]
            results = [trainer.wait() for trainer in trainers]
        compare(results, table.get_module_rref().local_value(), steps)
    rpc.shutdown()


if __name__ == "__main__":
    main()
