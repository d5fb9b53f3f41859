"""Random jobs of trainers and servers against one process: each trainer's dense parts are averaged
by `hvd`, what lies between them is on servers that all trainers call, and one backward pass goes
through both, of the first or of the second order."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from lockstitch import autograd, hvd, rpc
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.job import active
from lockstitch.optim import DistributedOptimizer, parameters_of
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.collectives.ranks import in_threads

EXAMPLES = settings.default.max_examples
STEPS = 3
RATE = 0.1
WIDTH = 3
KINDS = ("plain", "unused", "frozen", "embedding", "tied", "empty", "scalar", "hooked")
WAYS = ("sync", "async", "remote", "group", "coroutine")
OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=RATE),
    "momentum": lambda parameters: optim.SGD(parameters, lr=RATE, momentum=0.9),
    "Adam": lambda parameters: optim.Adam(parameters, lr=0.02),
}


class Job(NamedTuple):
    """`kinds`: of the parts before and after the servers; `servers`: what each has. `local`: a step
    without servers, in no context. `leaves_out`: rank 0 does not use the part behind them."""

    kinds: tuple[str, str]
    servers: list[tuple[str, str]]
    size: int
    way: str
    optimizer: str
    order: str
    passes: int
    op: Any
    local: int
    leaves_out: bool
    is_named: bool

    def batch(self, rank: int, step: int, turn: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank + 10 * turn + 100 * step)
        return torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)

    def loss(self, rank: int, x: torch.Tensor, net: Any, middle: Any, grad: Any) -> torch.Tensor:
        """Of one pass of a rank; `grad` differentiates with a history."""
        x.requires_grad_(self.order != "first")
        y = middle(net[0](x))
        if not (self.leaves_out and rank == 0):
            y = net[1](y)
        loss = y.square().mean()
        if self.order == "first":
            return loss
        (slope,) = grad(loss, [x])
        return slope.square().sum() + (loss if self.order == "penalty" else 0.0)


JOBS = st.builds(
    Job,
    st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    st.lists(
        st.tuples(st.sampled_from(("server0", "server1")), st.sampled_from(KINDS)), max_size=3
    ),
    st.sampled_from((2, 2, 3)),
    st.sampled_from(WAYS),
    st.sampled_from(sorted(OPTIMIZERS)),
    st.sampled_from(("first", "penalty", "slope")),
    st.sampled_from((1, 2)),
    st.sampled_from((hvd.Average, hvd.Sum)),
    st.sampled_from((-1, 1)),
    st.booleans(),
    st.booleans(),
)


class Part(nn.Module):
    def __init__(self, seed: int, kind: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.kind = kind
        self.weight = nn.Parameter(
            torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) * 0.6
        )
        more = {
            "unused": torch.ones(2),
            "frozen": torch.ones(2),
            "embedding": torch.randn(5, WIDTH, generator=generator),
            "empty": torch.ones(0, WIDTH),
            "scalar": torch.tensor(0.5),
        }.get(kind)
        if more is not None:
            self.more = nn.Parameter(more.double(), requires_grad=kind != "frozen")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ self.weight)
        if self.kind == "embedding":
            y = y + self.more[torch.arange(len(x)) % 5]
        elif self.kind == "tied":
            y = y @ self.weight.T
        elif self.kind == "empty":
            y = y + self.more.sum()
        elif self.kind == "scalar":
            y = y * self.more
        elif self.kind == "hooked" and y.requires_grad:
            y.register_hook(lambda gradient: gradient * 1.5)
        return y

    def values(self) -> list[torch.Tensor]:
        return [each.detach().clone() for each in self.parameters()]


def parts(job: Job) -> nn.ModuleList:
    return nn.ModuleList(Part(number, kind) for number, kind in enumerate(job.kinds))


def run_part(part: Any, x: torch.Tensor) -> Any:
    return part.local_value()(x)


async def run_part_later(part: Any, x: torch.Tensor) -> Any:
    return part.local_value()(x)


def through(job: Job, servers: list[Any], x: torch.Tensor) -> torch.Tensor:
    for (owner, _), part in zip(job.servers, servers, strict=True):
        if job.way == "sync":
            x = part.rpc_sync().forward(x)
        elif job.way == "async":
            x = part.rpc_async().forward(x).wait()
        elif job.way == "remote":
            x = part.remote().forward(x).to_here()
        elif job.way == "group":
            (x,) = rpc.group([owner]).call(run_part, (part, x))
        else:
            x = rpc.rpc_sync(owner, run_part_later, args=(part, x))
    return x


class Given:
    """The parts on servers, for the trainers that did not make them."""

    servers: ClassVar[list[Any]] = []


def given_servers() -> list[Any]:
    return Given.servers


def train(job: Job, rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    net, servers = parts(job), rpc.rpc_sync("trainer0", given_servers)
    dense = hvd.DistributedOptimizer(
        OPTIMIZERS[job.optimizer](net.parameters()),
        net.named_parameters() if job.is_named else None,
        op=job.op,
        backward_passes_per_step=job.passes if job.local >= 0 else 1,
    )
    references = [each for part in servers for each in parameters_of(part)]
    shared = DistributedOptimizer(optim.SGD, references, lr=RATE / job.size) if references else None
    losses = []
    for step in range(STEPS):
        dense.zero_grad()
        hvd.barrier()
        if step == job.local:
            for turn in range(job.passes):
                loss = job.loss(rank, job.batch(rank, step, turn), net, lambda y: y, differentiate)
                loss.backward()
                losses.append(loss.detach())
            dense.step()
            continue
        with autograd.context() as context_id:
            for turn in range(job.passes):
                loss = job.loss(
                    rank,
                    job.batch(rank, step, turn),
                    net,
                    lambda y: through(job, servers, y),
                    lambda of, by: autograd.grad(context_id, of, by, create_graph=True),
                )
                autograd.backward(context_id, [loss])
                losses.append(loss.detach())
            hvd.barrier()  # all have used what is about to change
            dense.step(context_id)
            if shared is not None:
                shared.step(context_id)
        hvd.barrier()
    return losses, [value for part in net for value in part.values()]


def differentiate(of: torch.Tensor, by: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(of, by, create_graph=True)


def in_one_process(job: Job) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], list[Any]]:
    net = parts(job)
    servers = [Part(10 + number, kind) for number, (_, kind) in enumerate(job.servers)]
    dense = OPTIMIZERS[job.optimizer](net.parameters())
    shared = optim.SGD(
        [nn.Parameter(torch.zeros(1)), *nn.ModuleList(servers).parameters()], lr=RATE
    )
    losses: list[list[torch.Tensor]] = [[] for _ in range(job.size)]
    for step in range(STEPS):
        dense.zero_grad()
        shared.zero_grad()
        middle = nn.Identity() if step == job.local else nn.Sequential(*servers)
        for rank in range(job.size):
            for turn in range(job.passes):
                loss = job.loss(rank, job.batch(rank, step, turn), net, middle, differentiate)
                (loss / job.size).backward()
                losses[rank].append(loss.detach())
        for each in net.parameters() if job.op is hvd.Sum else ():
            if each.grad is not None:
                each.grad *= job.size
        dense.step()
        if step != job.local:
            shared.step()
    return losses, [value for part in net for value in part.values()], servers


def check(job: Job, cluster: LocalCluster) -> None:
    with cluster["trainer0"].active():
        Given.servers = [
            rpc.remote(owner, Part, args=(10 + number, kind))
            for number, (owner, kind) in enumerate(job.servers)
        ]
    with LocalSessions(job.size) as sessions:

        def run(rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            with cluster[f"trainer{rank}"].active(), active(sessions[rank]):
                try:
                    return train(job, rank)
                except BaseException:
                    sessions[rank].shutdown()  # the others need not wait
                    raise

        trained = in_threads(job.size, run)
    losses, values, servers = in_one_process(job)
    for (own_losses, own_values), rank_losses in zip(trained, losses, strict=True):
        torch.testing.assert_close(own_losses, rank_losses)
        torch.testing.assert_close(own_values, values)
    with cluster["trainer0"].active():
        for part, twin in zip(Given.servers, servers, strict=True):
            torch.testing.assert_close(part.rpc_sync().values(), twin.values())
    Given.servers = []


@settings(max_examples=EXAMPLES // 3)
@given(JOBS)
def test_trainers_and_servers_learn_what_one_process_does(job: Job) -> None:
    with LocalCluster(("trainer0", "trainer1", "trainer2", "server0", "server1")) as cluster:
        check(job, cluster)
