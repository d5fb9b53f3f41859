"""A user's program that touches every part of the library; a strict type checker passes it.

It is read, not run.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from typing_extensions import assert_type

import lockstitch
import lockstitch.hvd.torch as hvd_torch
from lockstitch import autograd, checkpoint, collectives, hvd, nn, observe, optim, rpc, testing
from lockstitch.errors import PeerDiedError, RpcTimeoutError
from lockstitch.hvd import elastic
from lockstitch.nn import parallel
from lockstitch.pytest_plugin import lockstitch_cluster as lockstitch_cluster
from lockstitch.rpc.functions import async_execution


class Server:
    """Lives on one worker."""

    def __init__(self, size: int) -> None:
        self.weights = torch.zeros(size)

    def mean(self) -> float:
        """Of the weights."""
        return float(self.weights.mean())


def total(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Of both."""
    return left + right


@async_execution
def later(x: int) -> torch.futures.Future[str]:
    """Answers when it can."""
    return rpc.rpc_async("ps", str, args=(x,))


def calls(x: torch.Tensor) -> None:
    """What calls return is what their functions return."""
    rpc.init_rpc("trainer", rank=0, world_size=2)
    assert_type(rpc.rpc_sync("ps", total, args=(x, x)), torch.Tensor)
    assert_type(rpc.rpc_async("ps", total, args=(x, x)), rpc.Future[torch.Tensor])
    assert_type(rpc.rpc_async("ps", total, args=(x, x)).wait(), torch.Tensor)
    assert_type(rpc.rpc_sync("ps", later, args=(1,)), str)
    reference = rpc.remote("ps", Server, args=(3,))
    assert_type(reference, rpc.RRef[Server])
    assert_type(reference.to_here(), Server)
    assert_type(reference.local_value(), Server)
    assert_type(reference.owner(), rpc.WorkerInfo)
    assert_type(rpc.RRef(x), rpc.RRef[torch.Tensor])
    assert_type(rpc.get_worker_info("ps").name, str)
    rpc.add_membership_callback(lambda event: print(event))
    try:
        rpc.shutdown()
    except (PeerDiedError, RpcTimeoutError) as error:
        print(error)


def gradients(references: list[rpc.RRef[torch.Tensor]], loss: torch.Tensor) -> None:
    """A step over several workers."""
    optimizer = optim.DistributedOptimizer(torch.optim.SGD, references, lr=0.1)
    with autograd.context() as context_id:
        assert_type(context_id, int)
        autograd.backward(context_id, [loss])
        assert_type(autograd.get_gradients(context_id), dict[torch.Tensor, torch.Tensor])
        optimizer.step(context_id)


def ranks(model: torch.nn.Module, x: torch.Tensor) -> None:
    """The interface of Horovod."""
    hvd.init()
    assert_type(hvd.rank(), int)
    assert_type(hvd.allreduce(x, op=hvd.Average), torch.Tensor)
    assert_type(hvd_torch.allreduce(x, op=hvd_torch.Sum), torch.Tensor)
    assert_type(hvd.broadcast_object({"epoch": 1}, root_rank=0), dict[str, int])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
    )
    optimizer.step()


@elastic.run
def train(state: elastic.TorchState) -> None:
    """Goes on while workers come and go."""
    state.commit()


def slots(model: torch.nn.Module, x: torch.Tensor) -> None:
    """Modules on slots and on other workers."""
    wrapped = nn.DataParallel(model, device_ids=["cpu", "cpu"])
    assert_type(wrapped.module, torch.nn.Module)
    print(wrapped(x), nn.RemoteModule("ps/cpu", torch.nn.Linear, args=(2, 2)))
    print(parallel.scatter(x, ["cpu", "cpu"]), DataLoader)


def other_parts(folder: Path) -> None:
    """Saving, looking inside, taking another library's place."""
    checkpoint.register("model", torch.nn.Linear(2, 2))
    checkpoint.save(folder)
    print(lockstitch.explain_waits(), observe.explain_waits(), lockstitch.__version__)
    lockstitch.replace("torch-rpc").undo()
    print(collectives)


def test_of_the_users_own(
    lockstitch_cluster: Callable[..., testing.LocalCluster], lockstitch_faults: testing.Faults
) -> None:
    """The fixtures have types to be named."""
    with testing.no_leaks():
        print(lockstitch_cluster("a", "b"), lockstitch_faults)
