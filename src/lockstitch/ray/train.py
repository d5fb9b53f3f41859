"""A backend for Ray Train: `DataParallelTrainer(train, backend_config=LockstitchConfig(), …)`.

Ray Train starts the workers; this tells each its rank, where the ranks meet, and the job's secret.
In the function of the training, `hvd.init()` and `rpc.init_rpc(…)` then find each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.train.backend import Backend, BackendConfig

from lockstitch.ray.fixed import rank_environments
from lockstitch.ray.worker import HvdWorker, WorkerPlace
from lockstitch.trust import Secret

_WORKER: Final = HvdWorker()
"""This process, where it is a worker of Ray Train."""


def _place() -> WorkerPlace:
    return _WORKER.place()


def _hold_port() -> int:
    return _WORKER.hold_port()


def _prepare(environment: dict[str, str], secret: str) -> None:
    _WORKER.prepare(environment, secret)


def _leave() -> None:
    _WORKER.leave()


@dataclass
class LockstitchConfig(BackendConfig):
    """The backend of a trainer of Ray Train whose workers are ranks of `lockstitch.hvd`, or workers
    of `lockstitch.rpc`. `timeout_s`: seconds for the ranks to meet (60)."""

    timeout_s: float = 60
    env_vars: dict[str, str] = field(default_factory=dict)
    """More variables for each worker."""

    @property
    def backend_cls(self) -> type[LockstitchBackend]:
        """The class that Ray Train makes the backend of."""
        return LockstitchBackend


class LockstitchBackend(Backend):
    """Tells the workers of a trainer where they are."""

    def on_start(self, worker_group: Any, backend_config: LockstitchConfig) -> None:
        """Called when the workers have been started."""
        places: list[WorkerPlace] = worker_group.execute(_place)
        port = worker_group.execute_single(0, _hold_port)
        more = {
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(backend_config.timeout_s))),
            **backend_config.env_vars,
        }
        secret = Secret.make().text()
        ray.get(
            [
                worker_group.execute_single_async(number, _prepare, {**environment, **more}, secret)
                for number, environment in enumerate(rank_environments(places, port))
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: LockstitchConfig) -> None:  # noqa: ARG002
        """Called before the workers are ended."""
        worker_group.execute(_leave)
