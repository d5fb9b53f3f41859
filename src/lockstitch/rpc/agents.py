"""The agent as ported programs see it: a view of a worker under the incumbent's names."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.memory.segments import SegmentPool
from lockstitch.rpc.membership import Membership
from lockstitch.rpc.options import TensorPipeRpcBackendOptions
from lockstitch.rpc.quiescence import Quiescence

if TYPE_CHECKING:
    import torch

    from lockstitch.ids import WorkerInfo
    from lockstitch.memory.pools import Pool
    from lockstitch.runtime.worker import Worker


class RpcAgent:
    """The base class of every backend's agent."""


@dataclass(frozen=True)
class TensorPipeAgent(RpcAgent):
    """A view of `worker`; two views of one worker are equal."""

    worker: Worker

    def get_worker_info(self, worker_name: str | int | None = None) -> WorkerInfo:
        """Returns name and rank of this worker, or of the one with that name or rank."""
        if worker_name is None:
            return self.worker.info
        return self.worker.agent.resolve(worker_name)

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Returns names and ranks of all workers."""
        return list(self.worker.agent.members())

    @property
    def is_static_group(self) -> bool:
        """Whether all workers come and go together."""
        return self.worker.service(Membership).is_static

    def _get_device_map(self, worker_info: WorkerInfo) -> dict[torch.device, torch.device]:
        """Returns which device of ours becomes which of that worker's."""
        return dict(self.worker.agent.options.device_maps.get(worker_info.name, {}))

    def _get_backend_options(self) -> TensorPipeRpcBackendOptions:
        """Returns the number of threads, the timeout and the device maps that are in force."""
        agent = self.worker.agent
        options = TensorPipeRpcBackendOptions(
            num_worker_threads=agent.options.num_threads, rpc_timeout=agent.default_timeout
        )
        options.device_maps = {to: dict(map_) for to, map_ in agent.options.device_maps.items()}
        return options

    def get_debug_info(self) -> dict[str, str]:
        """Returns how many threads and calls there are, under the incumbent's keys, and what the
        pools of memory hold (see `memory.pools.PoolStatistics`)."""
        agent = self.worker.agent
        now = agent.statistics()
        pools: dict[str, Pool] = {"buffers": agent.buffers}
        with contextlib.suppress(LookupError):  # there may be no shared memory
            pools["segments"] = self.worker.service(SegmentPool)
        memory = {
            f"{name}.{figure}": str(number)
            for name, pool in pools.items()
            for figure, number in dataclasses.asdict(pool.statistics()).items()
        }
        return memory | {
            "agent.thread_pool_size": str(agent.options.num_threads),
            "agent.num_threads": str(now.threads),
            "agent.client_active_calls": str(now.outstanding),
            "agent.server_active_calls": str(now.served),
            "agent.server_queued_calls": str(now.backlog),
        }

    def get_metrics(self) -> dict[str, str]:
        """Returns what `get_debug_info` returns."""
        return self.get_debug_info()

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Returns when all workers of the group have called this and nothing is under way anywhere.
        `timeout` in seconds, 0 for none."""
        del shutdown
        self.worker.service(Quiescence).wait_until_all_rest(timeout or None)

    def sync(self) -> None:
        """Does what `join` does, without a timeout."""
        self.join()

    def shutdown(self) -> None:
        """Ends the worker, without waiting for the others."""
        self.worker.close()
