"""GraphSAGE on a graph of which each worker has a part (Hamilton, Ying and Leskovec, 2017).

The graph follows a stated rule: node v is of community v % 8, and has twelve neighbours, each of
its own community with a chance of 0.6, and else any node. Its features tell the community, but
through so much noise that the strongest one is right for one node in four. Worker w owns every
node v with v % 3 == w: its neighbours, its features, and an embedding that is learned. No worker
sees the whole graph.

Every worker trains on labelled nodes of its own. It asks the owners of a batch's nodes, all at
once, for some neighbours of each, then the owners of these for theirs, and then all of them for
features and embeddings. The backward pass takes the gradients of embeddings back to their owners,
where SGD steps them; those of the layers, of which each worker has a copy, are averaged by `hvd`.
At the end all is compared with one process that has the whole graph and was given all batches.

    lockstitch run -n 3 examples/graph_sage.py [steps]
"""

import os
import sys
import time
from functools import partial

import torch
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import hvd, rpc
from lockstitch.optim import DistributedOptimizer

PARTS = 3
NODES, COMMUNITIES, DEGREE = 24_000, 8, 12
FEATURES, WIDTH, HIDDEN = COMMUNITIES, 8, 32
SAMPLED = [8, 4]  # neighbours of each node of the batch, and of each of those
LABELLED, BATCH = 0.1, 64
RATE = 3.0  # of the embeddings: a node is in few batches, over which the loss is averaged


class Part:
    """What one worker has of the graph: every third node."""

    def __init__(self, number):
        generator = torch.Generator().manual_seed(number)
        self.nodes = torch.arange(number, NODES, PARTS)
        self.labels = self.nodes % COMMUNITIES
        kin = torch.rand(len(self.nodes), DEGREE, generator=generator) < 0.6
        anybody = torch.randint(NODES, (len(self.nodes), DEGREE), generator=generator)
        of_its_own = anybody - anybody % COMMUNITIES + self.labels.unsqueeze(1)
        self.neighbours = torch.where(kin, of_its_own, anybody)
        noise = torch.randn(len(self.nodes), FEATURES, generator=generator).double()
        self.features = nn.functional.one_hot(self.labels, FEATURES) + 2 * noise
        self.embeddings = nn.Embedding(len(self.nodes), WIDTH, sparse=True).double()
        nn.init.zeros_(self.embeddings.weight)
        order = torch.randperm(len(self.nodes), generator=generator)
        self.labelled, self.others = order.tensor_split([int(LABELLED * len(order))])

    def sample(self, nodes, count, seed):
        """Draws so many neighbours of each node."""
        generator = torch.Generator().manual_seed(seed)
        places = torch.rand(len(nodes), DEGREE, generator=generator).argsort(1)[:, :count]
        return self.neighbours[nodes // PARTS].gather(1, places)

    def look_up(self, nodes):
        """Features and embeddings."""
        rows = nodes // PARTS
        return torch.cat([self.features[rows], self.embeddings(rows)], 1)

    def draw(self, seed, among, count):
        """Some of its nodes, and their labels."""
        generator = torch.Generator().manual_seed(seed)
        rows = among[torch.randperm(len(among), generator=generator)[:count]]
        return self.nodes[rows], self.labels[rows]

    def table(self):
        return rpc.RRef(self.embeddings.weight)


class Sage(nn.Module):
    """Two layers, each from a node and the mean of its sampled neighbours."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(2 * (FEATURES + WIDTH), HIDDEN).double()
        self.second = nn.Linear(2 * HIDDEN, COMMUNITIES).double()

    def forward(self, ask, batch, seed):
        """Scores of the communities, for each node of the batch; `ask(method, nodes, …)` asks their
        owners."""
        near = ask("sample", batch, SAMPLED[0], seed)
        inner = torch.cat([batch, near.flatten()]).unique()
        far = ask("sample", inner, SAMPLED[1], seed + 1)
        outer = torch.cat([inner, far.flatten()]).unique()
        values = ask("look_up", outer)
        own, others = (values[torch.searchsorted(outer, nodes)] for nodes in (inner, far))
        values = self.first(torch.cat([own, others.mean(1)], 1)).relu()
        own, others = (values[torch.searchsorted(inner, nodes)] for nodes in (batch, near))
        return self.second(torch.cat([own, others.mean(1)], 1))


def ask_owners(begin, method, nodes, *arguments):
    """Asks the owners of nodes, all at once, and puts what they answer into the nodes' order;
    `begin(owner, method, …)` returns what gives the answer."""
    places = [(nodes % PARTS == owner).nonzero().squeeze(1) for owner in range(PARTS)]
    asked = [begin(owner, method, nodes[mine], *arguments) for owner, mine in enumerate(places)]
    return torch.cat([answer() for answer in asked])[torch.cat(places).argsort()]


def over_workers(parts):
    """How parts are asked that are elsewhere."""

    def begin(owner, method, *arguments):
        return getattr(parts[owner].rpc_async(), method)(*arguments).wait

    return partial(ask_owners, begin)


def in_one_process(parts):
    def begin(owner, method, *arguments):
        return partial(getattr(parts[owner], method), *arguments)

    return partial(ask_owners, begin)


def seed_of(step, worker):
    return 10 * (PARTS * step + worker)


def train(parts, steps):
    """On each worker. Returns its losses, its layers' parameters, how many of its other nodes are
    told right, and how many seconds the steps took."""
    hvd.init()
    worker, ask, model = hvd.rank(), over_workers(parts), Sage()
    mine = parts[worker].local_value()
    layers = hvd.DistributedOptimizer(optim.Adam(model.parameters(), lr=0.01))
    tables = DistributedOptimizer(optim.SGD, [part.rpc_sync().table() for part in parts], lr=RATE)
    losses, begun = [], time.perf_counter()
    for step in range(steps):
        seed = seed_of(step, worker)
        batch, labels = mine.draw(seed, mine.labelled, BATCH)
        with dist_autograd.context() as context_id:
            loss = nn.functional.cross_entropy(model(ask, batch, seed), labels)
            dist_autograd.backward(context_id, [loss])
            layers.step(context_id)
            tables.step(context_id)
        losses.append(loss.item())
        hvd.barrier()  # so that all see the same embeddings, and can be compared with one process
    seconds = time.perf_counter() - begun
    right = share_right(ask, model, mine)
    hvd.shutdown()
    return losses, nn.utils.parameters_to_vector(model.parameters()).detach(), right, seconds


def share_right(ask, model, part):
    """Of nodes without labels, in per cent."""
    batch, labels = part.draw(0, part.others, 500)
    with torch.no_grad():
        return 100 * (model(ask, batch, 0).argmax(1) == labels).double().mean().item()


def train_in_one_process(steps):
    """The same: every worker's gradients step the embeddings, and their mean the layers."""
    parts, model = [Part(number) for number in range(PARTS)], Sage()
    ask = in_one_process(parts)
    layers = optim.Adam(model.parameters(), lr=0.01)
    tables = optim.SGD([part.embeddings.weight for part in parts], lr=RATE)
    for step in range(steps):
        layers.zero_grad()
        tables.zero_grad()
        for worker, part in enumerate(parts):
            seed = seed_of(step, worker)
            batch, labels = part.draw(seed, part.labelled, BATCH)
            nn.functional.cross_entropy(model(ask, batch, seed), labels).backward()
        for parameter in model.parameters():
            parameter.grad /= PARTS
        layers.step()
        tables.step()
    return parts, nn.utils.parameters_to_vector(model.parameters()).detach()


def compare(results, parts, steps):
    """Prints how the loss fell, and how far all ended from one process."""
    losses = [sum(each) / PARTS for each in zip(*(result[0] for result in results), strict=True)]
    for step in range(0, steps, max(1, steps // 5)):
        print(f"step {step + 1:3}  loss {losses[step]:.4f}", flush=True)
    print(f"right: {sum(result[2] for result in results) / PARTS:.0f} % of nodes without a label")
    print(f"{steps / max(result[3] for result in results):.0f} steps per second")
    alone, layers = train_in_one_process(steps)
    apart = [(result[1] - layers).abs().max() for result in results]
    for part, one in zip(parts, alone, strict=True):
        apart.append((part.rpc_sync().table().to_here() - one.embeddings.weight).abs().max())
    print(f"greatest difference from one process {max(apart).item():.1e}", flush=True)


def main():
    if os.environ.get("WORLD_SIZE") != "3":
        sys.exit("start it so: lockstitch run -n 3 examples/graph_sage.py")
    rank, steps = int(os.environ["RANK"]), int(sys.argv[1]) if len(sys.argv) > 1 else 200
    torch.set_num_threads(1)  # several processes share the cores
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=PARTS)
    if rank == 0:
        parts = [rpc.remote(f"worker{number}", Part, (number,)) for number in range(PARTS)]
        results = rpc.group("worker*").call(train, (parts, steps), timeout=0)
        compare(results, parts, steps)
    rpc.shutdown()


if __name__ == "__main__":
    main()
