"""The backend FAULTY_TENSORPIPE: the default one, with `Mishaps` in the way of what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.rpc._testing.mishaps import Mishaps
from lockstitch.rpc.agents import TensorPipeAgent
from lockstitch.rpc.backend_registry import register_backend
from lockstitch.rpc.constants import DEFAULT_NUM_WORKER_THREADS
from lockstitch.rpc.options import RpcBackendOptions, TensorPipeRpcBackendOptions
from lockstitch.rpc.startup import start_worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.distributed.distributed_c10d import Store

    from lockstitch.runtime.agent import Agent


class FaultyTensorPipeRpcBackendOptions(TensorPipeRpcBackendOptions):
    """Options of that backend. `messages_to_fail`: names of the kinds to lose, each message
    `num_fail_sends` times; `messages_to_delay`: seconds by name. The names are those of
    `mishaps.MESSAGES`."""

    def __init__(
        self,
        num_worker_threads: int,
        rpc_timeout: float,
        init_method: str,
        messages_to_fail: Iterable[str],
        messages_to_delay: Mapping[str, float],
        num_fail_sends: int,
    ) -> None:
        super().__init__(
            num_worker_threads=num_worker_threads, rpc_timeout=rpc_timeout, init_method=init_method
        )
        self.messages_to_fail = list(messages_to_fail)
        self.messages_to_delay = dict(messages_to_delay)
        self.num_fail_sends = num_fail_sends


class FaultyTensorPipeAgent(TensorPipeAgent):
    """The agent of that backend."""


def _make_options(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
    messages_to_fail: Iterable[str] = (),
    messages_to_delay: Mapping[str, float] | None = None,
    num_fail_sends: int = 0,
    **_ignored: object,
) -> FaultyTensorPipeRpcBackendOptions:
    return FaultyTensorPipeRpcBackendOptions(
        num_worker_threads,
        rpc_timeout,
        init_method,
        messages_to_fail,
        messages_to_delay or {},
        num_fail_sends,
    )


def _init_backend(
    store: Store,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: RpcBackendOptions,
) -> FaultyTensorPipeAgent:
    options = rpc_backend_options
    if not isinstance(options, FaultyTensorPipeRpcBackendOptions):
        raise TypeError(
            f"`rpc_backend_options` must be a `FaultyTensorPipeRpcBackendOptions`. {options}"
        )

    def mishaps(agent: Agent) -> Mishaps:
        return Mishaps(
            agent.call_later,
            options.messages_to_fail,
            options.messages_to_delay,
            options.num_fail_sends,
        )

    return FaultyTensorPipeAgent(start_worker(store, name, rank, world_size, options, mishaps))


register_backend("FAULTY_TENSORPIPE", _make_options, _init_backend)
