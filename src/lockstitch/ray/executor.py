"""`RayExecutor`: ranks of `lockstitch.hvd` on a cluster of Ray, with the signature of
`horovod.ray`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.errors import NotInitializedError
from lockstitch.ray.calls import Call
from lockstitch.ray.elastic import ElasticJob, ElasticPlan, WorkerTask
from lockstitch.ray.engine import find_ray
from lockstitch.ray.fixed import FixedJob, FixedPlan
from lockstitch.ray.log import CallbackThread
from lockstitch.ray.settings import Settings, WorkerResources, write_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Callbacks = Sequence[Callable[[Any], object]] | None

_N = TypeVar("_N")


class RayExecutor:
    """Ranks of `lockstitch.hvd` on a cluster of Ray.

    `settings`: from `create_settings`; None for the defaults. `num_workers`: how many ranks, close
    together; or `num_hosts` and `num_workers_per_host` (1): so many on each of so many nodes. With
    `min_workers` instead (and `max_workers`, None for as many as there is room for) ranks come and
    go with the nodes, and those that die are replaced: the function is to train in
    `hvd.elastic.run`. Each rank gets `cpus_per_worker` CPUs (1) and, with `use_gpu`,
    `gpus_per_worker` GPUs (1). `use_current_placement_group`: a program in a placement group, such
    as a trial of Ray Tune, has its ranks there. `reset_limit`: how often ranks may meet anew (None:
    ever again). `cooldown_range`: seconds that a slot stays empty after its worker has failed, at
    first and at most. `elastic_timeout`: seconds to wait for enough workers (600).
    `override_discovery`: whether Ray says which nodes there are (True), or `settings.discovery`.
    `num_slots`, `cpus_per_slot` and `gpus_per_slot` are older names of `num_workers_per_host`,
    `cpus_per_worker` and `gpus_per_worker`.

    Ranks get the job's secret over their connection to this program, and prove by it to each other
    that they belong together. A context manager: started within, and shut down at the end.

    Raises `ImportError` where there is no Ray, `ValueError` for numbers that contradict each other.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
        *,
        num_slots: int | None = None,
        cpus_per_slot: float | None = None,
        gpus_per_slot: float | None = None,
    ) -> None:
        find_ray()
        self.settings = Settings() if settings is None else settings
        num_workers_per_host = _newest(
            num_workers_per_host, num_slots, "num_slots", "num_workers_per_host"
        )
        cpus_per_worker = _newest(
            cpus_per_worker, cpus_per_slot, "cpus_per_slot", "cpus_per_worker"
        )
        gpus_per_worker = _newest(
            gpus_per_worker, gpus_per_slot, "gpus_per_slot", "gpus_per_worker"
        )
        if max_workers and not min_workers:
            raise ValueError("max_workers is for ranks that come and go: give min_workers as well")
        if min_workers and (num_workers or num_hosts):
            given = "num_workers" if num_workers else "num_hosts"
            raise ValueError(
                f"Both `min_workers` and `{given}` provided. Give num_workers (or num_hosts) for "
                "ranks that stay, or min_workers for ranks that come and go, not both"
            )
        resources = WorkerResources.of_hvd(
            cpus_per_worker, use_gpu, gpus_per_worker, "gpus_per_worker"
        )
        self._plan: FixedPlan | ElasticPlan
        if min_workers is None:
            self._plan = FixedPlan(
                resources, num_workers, num_hosts, num_workers_per_host, use_current_placement_group
            )
        else:
            shortest, longest = cooldown_range or (0.0, 0.0)
            self._plan = ElasticPlan(
                resources,
                min_workers,
                max_workers,
                reset_limit,
                (shortest, longest),
                elastic_timeout,
            )
            if override_discovery:
                self.settings.discovery = None
        self.settings.elastic = min_workers is not None
        self._job: FixedJob | ElasticJob | None = None
        self._was_shut_down = False
        self._begin_call: Call | None = None
        self._variables: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<RayExecutor · {self._job or 'not started'}>"

    def __enter__(self) -> RayExecutor:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()

    @property
    def workers(self) -> list[Any]:
        """Ray's handles of the workers, in the order of ranks, each with the methods of
        `BaseHorovodWorker`: `env_vars`, `update_env_vars`, `hostname`, `get_gpu_ids`, `execute`.
        Empty before the start and after the end, and where workers come and go."""
        return self._job.workers if isinstance(self._job, FixedJob) else []

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float | None = None,
        nics: Iterable[str] | None = None,
    ) -> Settings:
        """Returns settings for an executor.

        `timeout_s`: seconds for the ranks to meet. `placement_group_timeout_s`: seconds to wait for
        room in the cluster (None: 100 where others only use it at present, 10 where the nodes that
        there are could never have enough; say more where an autoscaler brings nodes). Without
        effect here, since Ray starts the ranks and the network itself says by which interface they
        reach each other: `nics`; `ssh_identity_file`, into which `ssh_str` is still written.
        """
        write_identity(ssh_str, ssh_identity_file)
        return Settings(
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            ssh_identity_file=ssh_identity_file,
            nics=nics,
        )

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the workers, each of which makes an `executable_cls(*executable_args,
        **executable_kwargs)`, if one is given, for the functions of `execute`. `extra_env_vars` are
        set in each of them. Where workers come and go they are started by `run` or `execute`.

        Raises `PlacementError` where the cluster has no room for them in time,
        `NotInitializedError` where the executor has been started already, `SerializationError`
        where the arguments cannot be pickled, and what making the object raises.
        """
        if self._job is not None:
            raise NotInitializedError("this executor has been started already: shut it down first")
        self._variables = {
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(self.settings.timeout_s))),
            **{name: str(value) for name, value in (extra_env_vars or {}).items()},
        }
        self._begin_call = None
        if executable_cls is not None:
            self._begin_call = Call(executable_cls, executable_args or (), executable_kwargs or {})
        if isinstance(self._plan, FixedPlan):
            fixed = FixedJob(self._plan, self.settings, self._variables)
            fixed.start(self._begin_call)
            self._job = fixed
        else:
            elastic = ElasticJob(self._plan, self.settings)
            elastic.start()
            self._job = elastic

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks = None,
    ) -> list[Any]:
        """Runs `fn(*args, **kwargs)` on all ranks; returns what they return, in the order of ranks.
        `callbacks` are called with each value that rank 0 gives to `lockstitch.ray.log`.

        Function, arguments and results go by cloudpickle. Raises `SerializationError` where they
        cannot, at once what a rank has raised, with a note of which one it was, and `RankLostError`
        where a rank's process is gone; where workers come and go, `CollectiveError` when there are
        too few of them, or all have failed.
        """
        return self._run(Call(fn, args or (), kwargs or {}), callbacks, False)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Begins `fn(*args, **kwargs)` on all ranks and does not wait: returns references of Ray's
        to what they will return. Raises `NotImplementedError` where workers come and go."""
        return self._fixed("run_remote").submit(
            Call(fn, args or (), kwargs or {}), needs_executable=False
        )

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks = None) -> list[Any]:
        """Runs `fn(executable)` on all ranks, with the object that each has made at the start
        (None without one); otherwise as `run`."""
        return self._run(Call(fn), callbacks, True)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Runs `fn(executable)` on rank 0 alone, and returns what it returns. Raises
        `NotImplementedError` where workers come and go."""
        job = self._fixed("execute_single")
        return job.results([job.submit_single(Call(fn))])[0]

    def shutdown(self) -> None:
        """Ends the workers and gives their room back; harmless when repeated."""
        job, self._job = self._job, None
        if job is not None:
            self._was_shut_down = True
        if isinstance(job, FixedJob):
            job.close()

    def _started(self) -> FixedJob | ElasticJob:
        if self._job is None:
            raise NotInitializedError(
                "this executor was shut down; start() begins it anew"
                if self._was_shut_down
                else "this executor has no workers yet: call start() first"
            )
        return self._job

    def _fixed(self, name: str) -> FixedJob:
        job = self._started()
        if isinstance(job, ElasticJob):
            raise NotImplementedError(
                f"{name} needs ranks that stay; where workers come and go use run or execute"
            )
        return job

    def _run(self, call: Call, callbacks: Callbacks, needs_executable: bool) -> list[Any]:
        job = self._started()
        with CallbackThread(callbacks) as thread:
            if isinstance(job, FixedJob):
                job.log_to(thread.queue)
                return job.results(job.submit(call, needs_executable=needs_executable))
            return job.run(
                WorkerTask(call, needs_executable, self._begin_call, self._variables, thread.queue)
            )


class ElasticRayExecutor:
    """Ranks that come and go on a cluster of Ray; the older form of `RayExecutor(min_workers=…)`.

    `settings`: from `create_settings`. Each rank gets `cpus_per_slot` CPUs (1) and, with `use_gpu`,
    `gpus_per_slot` GPUs (1), and the variables `env_vars`. `override_discovery`: whether Ray says
    which nodes there are (True), or `settings.discovery`.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        self.settings = chosen = Settings() if settings is None else settings
        resources = WorkerResources.of_hvd(cpus_per_slot, use_gpu, gpus_per_slot, "gpus_per_slot")
        self._executor = RayExecutor(
            chosen,
            cpus_per_worker=resources.cpus,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot,
            min_workers=chosen.min_num_proc,
            max_workers=chosen.max_num_proc,
            reset_limit=chosen.reset_limit,
            cooldown_range=chosen.cooldown_range,
            elastic_timeout=chosen.elastic_timeout,
            override_discovery=override_discovery,
        )
        self._variables = dict(env_vars or {})

    def __repr__(self) -> str:
        return f"<ElasticRayExecutor over {self._executor!r}>"

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Iterable[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> Settings:
        """Returns settings for an executor: the least and the greatest number of ranks (None: as
        many as there is room for), and what `RayExecutor` has under the same names. `min_np` and
        `max_np` are older names of the first two. Raises `TypeError` for any other argument."""
        min_num_proc = _newest(min_num_proc, min_np, "min_np", "min_num_proc")
        max_num_proc = _newest(max_num_proc, max_np, "max_np", "max_num_proc")
        return Settings(
            timeout_s=timeout_s,
            ssh_identity_file=ssh_identity_file,
            nics=nics,
            min_num_proc=min_num_proc,
            max_num_proc=max_num_proc,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            **kwargs,
        )

    def start(self) -> None:
        """Waits until there is room (`RayExecutor.start`)."""
        self._executor.start(extra_env_vars=self._variables)

    def run(self, worker_fn: Callable[[], Any], callbacks: Callbacks = None) -> list[Any]:
        """Runs a function on all ranks (`RayExecutor.run`)."""
        return self._executor.run(worker_fn, callbacks=callbacks)

    def shutdown(self) -> None:
        """Ends the executor; harmless when repeated."""
        self._executor.shutdown()


def _newest(value: _N, older: _N | None, older_name: str, name: str) -> _N:
    """Returns what was given under an older name, if anything was, else `value`."""
    if older is None:
        return value
    warnings.warn(f"{older_name} is now {name}", DeprecationWarning, stacklevel=3)
    return older
