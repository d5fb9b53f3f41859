"""A recommender: tables too large for one worker on two servers, the dense part on two trainers.

Who clicks on what follows a stated rule: every user, item and tag has an inclination, which nobody
sees, and a click happens where they come to more than five. A trainer asks both servers for the
rows of its batch at once, and one backward pass takes the gradients back: sparse ones, of the rows
that were asked for. Two optimizers step: SGD on the servers, where the tables are, and Adam on the
trainers, whose gradients are averaged between them by `hvd`. At the end all is compared with one
process that was given all batches.

    lockstitch run -n 4 examples/recommender.py [steps]
"""

import os
import sys
import time
from itertools import combinations

import torch
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import hvd, rpc
from lockstitch.optim import DistributedOptimizer

NAMES = ["server0", "server1", "trainer0", "trainer1"]
SERVERS, TRAINERS, TRAINER_RANKS = NAMES[:2], NAMES[2:], [2, 3]
TABLES = {"users": 2000, "items": 1000, "tags": 200, "hours": 24}
OF_SERVER = {"server0": ["users", "hours"], "server1": ["items", "tags"]}
WIDTH, TAGS, BATCH = 16, 3, 256
RATE = 60.0  # of the tables: a row is in few examples of a batch, over which the loss is averaged


class Tables:
    """The tables of a server."""

    def __init__(self, names):
        self.tables = {name: make_table(name) for name in names}

    def look_up(self, ids):
        """Of each table that is asked the mean of some rows, for each of the batch."""
        return {name: self.tables[name](rows) for name, rows in ids.items()}

    def parameters(self):
        return [rpc.RRef(table.weight) for table in self.tables.values()]


def make_table(name):
    torch.manual_seed(TABLES[name])
    return nn.EmbeddingBag(TABLES[name], WIDTH, mode="mean", sparse=True).double()


class Dense(nn.Module):
    """Says how likely a click is, from how well each two of the rows agree."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        pairs = len(list(combinations(TABLES, 2)))
        self.top = nn.Sequential(
            nn.Linear(len(TABLES) * WIDTH + pairs, 64), nn.ReLU(), nn.Linear(64, 1)
        ).double()

    def forward(self, rows):
        each = [rows[name] for name in TABLES]
        agree = [(one * other).sum(1, keepdim=True) for one, other in combinations(each, 2)]
        return self.top(torch.cat([*each, *agree], 1)).squeeze(1)


def batch_of(trainer, step):
    """Rows of the tables, and whether there was a click."""
    generator = torch.Generator().manual_seed(2 * step + trainer)
    ids = {
        name: torch.randint(size, (BATCH, TAGS if name == "tags" else 1), generator=generator)
        for name, size in TABLES.items()
    }
    inclined = (ids["users"] % 5 + ids["items"] % 5).squeeze(1) + (ids["tags"] % 3).double().mean(1)
    return ids, (inclined > 5).double()


def loss_of(scores, clicks):
    return nn.functional.binary_cross_entropy_with_logits(scores, clicks)


def look_up(servers, ids):
    """Asks all servers at once."""
    asked = [
        server.rpc_async().look_up({table: ids[table] for table in OF_SERVER[name]})
        for name, server in servers.items()
    ]
    return {name: rows for answer in asked for name, rows in answer.wait().items()}


def train(servers, trainer, steps):
    """On a trainer. Returns its losses, its dense part, and how many seconds the steps took."""
    hvd.init(comm=TRAINER_RANKS)
    dense = Dense()
    local = hvd.DistributedOptimizer(optim.Adam(dense.parameters(), lr=0.01))
    parameters = [each for server in servers.values() for each in server.rpc_sync().parameters()]
    remote = DistributedOptimizer(optim.SGD, parameters, lr=RATE)
    losses, begun = [], time.perf_counter()
    for step in range(steps):
        ids, clicks = batch_of(trainer, step)
        with dist_autograd.context() as context_id:
            loss = loss_of(dense(look_up(servers, ids)), clicks)
            dist_autograd.backward(context_id, [loss])
            local.step(context_id)
            remote.step(context_id)
        losses.append(loss.item())
        hvd.barrier()  # so that all see the same tables, and can be compared with one process
    seconds = time.perf_counter() - begun
    hvd.shutdown()
    return losses, nn.utils.parameters_to_vector(dense.parameters()).detach(), seconds


def train_on_all(servers, steps):
    """On all trainers at once; returns what each of them returns."""
    running = [
        rpc.rpc_async(name, train, (servers, trainer, steps), timeout=0)
        for trainer, name in enumerate(TRAINERS)
    ]
    return [each.wait() for each in running]


def train_in_one_process(steps):
    """The same: each trainer's gradients step the tables, and their mean the dense part."""
    tables, dense = {name: make_table(name) for name in TABLES}, Dense()
    sparse = optim.SGD([table.weight for table in tables.values()], lr=RATE)
    adam = optim.Adam(dense.parameters(), lr=0.01)
    for step in range(steps):
        sparse.zero_grad()
        adam.zero_grad()
        for ids, clicks in (batch_of(trainer, step) for trainer in range(len(TRAINERS))):
            loss_of(dense({name: tables[name](ids[name]) for name in TABLES}), clicks).backward()
        for parameter in dense.parameters():
            parameter.grad /= len(TRAINERS)
        sparse.step()
        adam.step()
    return tables, nn.utils.parameters_to_vector(dense.parameters()).detach()


def compare(results, servers, steps):
    """Prints how the loss fell, and how far all ended from one process."""
    (losses, one, seconds), (_, other, _) = results
    for step in range(0, steps, max(1, steps // 5)):
        print(f"step {step + 1:3}  loss {losses[step]:.4f}", flush=True)
    print(f"loss of the last ten steps {sum(losses[-10:]) / len(losses[-10:]):.4f}")
    print(f"{steps / seconds:.0f} steps per second")
    print(f"difference between trainers {(one - other).abs().max():.1e}")
    tables, alone = train_in_one_process(steps)
    apart = [(one - alone).abs().max()]
    for name, server in servers.items():
        for table, weight in zip(OF_SERVER[name], server.rpc_sync().parameters(), strict=True):
            apart.append((weight.to_here() - tables[table].weight).abs().max())
    print(f"greatest difference from one process {max(apart).item():.1e}", flush=True)


def main():
    if os.environ.get("WORLD_SIZE") != "4":
        sys.exit("start it so: lockstitch run -n 4 examples/recommender.py")
    rank, steps = int(os.environ["RANK"]), int(sys.argv[1]) if len(sys.argv) > 1 else 200
    name = NAMES[rank]
    torch.set_num_threads(1)  # several processes share the cores
    rpc.init_rpc(name, rank=rank, world_size=4)
    if rank == 0:
        servers = {name: rpc.remote(name, Tables, (OF_SERVER[name],)) for name in SERVERS}
        compare(train_on_all(servers, steps), servers, steps)
    rpc.shutdown()


if __name__ == "__main__":
    main()
