"""The recommender of `examples/`, and how it is written for the incumbent.

Torch has nothing in place of `hvd`: there the dense part is averaged by DistributedDataParallel
over Gloo, in the autograd context of each trainer, and its parameters are stepped through
references to them, as in PyTorch's tutorial on DDP and RPC. All else is the example's own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import optim
from torch.nn.parallel import DistributedDataParallel

from benchmarks.cases.programs import example_of
from benchmarks.libraries import CALLEE, CALLER, FOURTH, LOCKSTITCH, THIRD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.cases.timing import Sample
    from benchmarks.libraries import Library

STEPS = 30
SERVERS, TRAINERS = (CALLER, CALLEE), (THIRD, FOURTH)


@contextlib.contextmanager
def recommender(library: Library) -> Iterator[Sample]:
    """Seconds per step of both trainers, without what comes before the first step."""
    example = example_of("recommender")
    tables = list(example.OF_SERVER.items())
    servers = {
        name: library.rpc.remote(worker, example.Tables, (kept,))
        for worker, (name, kept) in zip(SERVERS, tables, strict=True)
    }
    train = _train_ours if library.name == LOCKSTITCH else _train_incumbent

    with tempfile.TemporaryDirectory() as folder:
        # A store of torch looks for its file once more when it is given up: so the folder stays.
        places = (os.path.join(folder, str(number)) for number in itertools.count(29500))

        def sample() -> float:
            place = next(places)
            running = [
                library.rpc.rpc_async(name, train, (servers, number, place), timeout=0)
                for number, name in enumerate(TRAINERS)
            ]
            return max(each.wait() for each in running) / STEPS

        yield sample


def _train_ours(servers: dict[str, Any], trainer: int, meeting_place: str) -> float:
    example = example_of("recommender")
    # What a launcher tells.
    rank = example.TRAINER_RANKS[trainer]
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4", "LOCKSTITCH_STORE": meeting_place}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": os.path.basename(meeting_place)}
    return float(example.train(servers, trainer, STEPS)[2])


def _train_incumbent(servers: dict[str, Any], trainer: int, meeting_place: str) -> float:
    """What `train` of the example does."""
    example = example_of("recommender")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{meeting_place}", rank=trainer, world_size=2)
    dense = DistributedDataParallel(example.Dense())
    parameters = [each for server in servers.values() for each in server.rpc_sync().parameters()]
    remote = example.DistributedOptimizer(optim.SGD, parameters, lr=example.RATE)
    own = [example.rpc.RRef(parameter) for parameter in dense.parameters()]
    local = example.DistributedOptimizer(optim.Adam, own, lr=0.01)
    begun = time.perf_counter()
    for step in range(STEPS):
        ids, clicks = example.batch_of(trainer, step)
        with example.dist_autograd.context() as context_id:
            loss = example.loss_of(dense(example.look_up(servers, ids)), clicks)
            example.dist_autograd.backward(context_id, [loss])
            local.step(context_id)
            remote.step(context_id)
        loss.item()
        dist.barrier()
    seconds = time.perf_counter() - begun
    dist.destroy_process_group()
    return seconds
