"""A fixed number of ranks on Ray: an actor for each, which stay from one function to the next.

    reserve room ─▶ actors ─▶ ranks, node by node ─▶ a port that rank 0 holds ─▶ run, run, …

The actors learn the job's secret and their ranks by a call. After a failure the ranks meet at
another port the next time, with another secret: those that went through it to different points may
have met a different number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import CollectiveError, PlacementError, RankLostError, add_note
from lockstitch.launcher_link.fixed_ranks import host_by_host, ranks_on, variables_of_ranks
from lockstitch.ray.engine import find_ray, running_ray
from lockstitch.ray.placement import Wish, give_back, reserve
from lockstitch.ray.worker import HvdWorker, WorkerPlace
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstitch.ray.calls import Call
    from lockstitch.ray.settings import Settings, WorkerResources

_ACTOR_SECONDS: Final = 120.0
"""How long actors may take to start where their room is reserved."""
_CULPRIT_SECONDS: Final = 5.0
"""How long the others are waited for when a rank has failed: they fail because of it, or one of
them is to blame."""

_ADVICE: Final = (
    "Without it the ranks cannot meet any more: shut the executor down and start another, or let "
    "ranks come and go (min_workers)"
)


@dataclass(frozen=True)
class FixedPlan:
    """How many workers there are to be, and where: `workers` anywhere, close together; or
    `workers_per_host` on each of so many `hosts`."""

    resources: WorkerResources
    workers: int | None = None
    hosts: int | None = None
    workers_per_host: int = 1
    use_current_placement_group: bool = True

    def __post_init__(self) -> None:
        counts = {"num_workers": self.workers, "num_hosts": self.hosts}
        for name, count in {**counts, "num_workers_per_host": self.workers_per_host}.items():
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, not {count}")
        if (self.workers is None) == (self.hosts is None):
            raise ValueError(
                "say how many workers there are to be: give one of num_workers and num_hosts "
                "(with num_workers_per_host), or min_workers for workers that come and go"
            )

    @property
    def size(self) -> int:
        """How many workers there are to be."""
        return self.workers or (self.hosts or 0) * self.workers_per_host

    def wish(self) -> Wish:
        """Returns the room that they need."""
        if self.hosts is not None:
            bundle = self.resources.bundle(self.workers_per_host)
            return Wish([bundle] * self.hosts, "STRICT_SPREAD")
        return Wish([self.resources.bundle()] * self.size, "PACK")

    def bundle_of(self, worker: int) -> int:
        """Returns which bundle of the wish a worker runs in."""
        return worker if self.hosts is None else worker // self.workers_per_host


def rank_environments(places: Sequence[WorkerPlace], port: int) -> list[dict[str, str]]:
    """Returns the variables of each rank; `places` are in the order of ranks, the workers of a node
    together. `port` is one of rank 0's node."""
    master = places[0].address, port
    of_ranks = zip(places, ranks_on([place.node for place in places]), strict=True)
    return [
        {**variables_of_ranks(ranks, master), "LOCKSTITCH_ADDRESS": place.address}
        for place, ranks in of_ranks
    ]


@dataclass
class _Actors:
    """The actors, in the order of ranks, and the room that was reserved for them, if it was."""

    handles: list[Any] = field(default_factory=list)
    places: list[WorkerPlace] = field(default_factory=list)
    room: Any = None
    is_room_ours: bool = False


class FixedJob:
    """A job of a fixed number of ranks. `variables` are for all of them, besides their own."""

    def __init__(self, plan: FixedPlan, settings: Settings, variables: Mapping[str, str]) -> None:
        self._plan = plan
        self._settings = settings
        self._variables = dict(variables)
        self._actors = _Actors()
        self._is_to_meet_anew = False

    def __repr__(self) -> str:
        return f"<FixedJob of {self._plan.size} ranks>"

    @property
    def workers(self) -> list[Any]:
        """Ray's handles of the actors, in the order of ranks."""
        return list(self._actors.handles)

    def start(self, begin: Call | None) -> None:
        """Starts the actors and gives each its rank; `begin` makes the object that functions of
        `execute` get. Raises `PlacementError`, and what `begin` raises."""
        ray = running_ray()
        try:
            self._find_room()
            self._start_actors(ray)
            self._introduce(ray)
            if begin is not None:
                content = begin.put()
                ray.get([handle.begin.remote(content) for handle in self._actors.handles])
        except BaseException:
            self.close()
            raise

    def submit(self, call: Call, *, needs_executable: bool) -> list[Any]:
        """Begins a function on each rank; returns a reference of Ray's to what each will return."""
        content = call.put()
        if self._is_to_meet_anew:
            self._introduce(find_ray())
        return [
            (handle.execute if needs_executable else handle.run).remote(content)
            for handle in self._actors.handles
        ]

    def submit_single(self, call: Call) -> Any:
        """Begins a function on rank 0 alone; returns a reference to what it will return."""
        content = call.put()
        if self._is_to_meet_anew:
            self._introduce(find_ray())
        return self._actors.handles[0].execute.remote(content)

    def log_to(self, queue: Any) -> None:
        """Has the ranks log to that queue; None: to none."""
        for handle in self._actors.handles:
            handle.set_queue.remote(queue)

    def results(self, references: Sequence[Any]) -> list[Any]:
        """Waits for what ranks return, in their order. Raises what a rank has raised, soon
        after one has: of several that of one who has not merely lost another rank."""
        ray = find_ray()
        waiting, failures = list(references), []
        deadline: float | None = None
        while waiting:
            seconds = None if deadline is None else max(0.0, deadline - SYSTEM_CLOCK.now())
            done, waiting = ray.wait(waiting, num_returns=1, timeout=seconds)
            if not done:
                break
            try:
                ray.get(done[0])
            except Exception as error:  # noqa: BLE001 - whatever user code raises
                failures.append((references.index(done[0]), error))
                deadline = deadline or SYSTEM_CLOCK.now() + _CULPRIT_SECONDS
        if failures:
            self._is_to_meet_anew = True
            raise self._blamed(failures)
        values: list[Any] = ray.get(list(references))
        return values

    def close(self) -> None:
        """Ends the actors and gives their room back; harmless when repeated."""
        actors, self._actors = self._actors, _Actors()
        for handle in actors.handles:
            find_ray().kill(handle)
        if actors.is_room_ours:
            give_back(actors.room)

    # ------------------------------------------------------------ inside

    def _blamed(self, failures: list[tuple[int, Exception]]) -> Exception:
        rank, error = next(
            (each for each in failures if not _is_of_lost_rank(each[1])), failures[0]
        )
        place = self._actors.places[rank]
        where = f"rank {rank}, process {place.process} on node {place.address}"
        if isinstance(error, find_ray("exceptions").ActorDiedError):
            lost = RankLostError(f"{where}, is gone. {_ADVICE} ({error})")
            lost.__cause__ = error
            return lost
        add_note(error, f"raised on {where}")
        return error

    def _find_room(self) -> None:
        module = find_ray("util.placement_group")
        current = module.get_current_placement_group()
        if self._plan.use_current_placement_group and current is not None:
            self._actors.room = current
        else:
            timeout = self._settings.placement_group_timeout_s
            self._actors.room = reserve(self._plan.wish(), timeout)
            self._actors.is_room_ours = True

    def _start_actors(self, ray: Any) -> None:
        strategy = find_ray("util.scheduling_strategies").PlacementGroupSchedulingStrategy
        resources = self._plan.resources
        actor_class = ray.remote(HvdWorker)
        handles = self._actors.handles
        for worker in range(self._plan.size):
            index = self._plan.bundle_of(worker) if self._actors.is_room_ours else -1
            options = actor_class.options(
                num_cpus=resources.cpus,
                num_gpus=resources.gpus,
                scheduling_strategy=strategy(self._actors.room, index),
            )
            handles.append(options.remote())
        try:
            places = ray.get([handle.place.remote() for handle in handles], timeout=_ACTOR_SECONDS)
        except find_ray("exceptions").GetTimeoutError as error:
            raise PlacementError(
                f"{self._plan.size} workers did not start within {_ACTOR_SECONDS:g} s in the "
                f"placement group that was there, of {self._plan.wish()}"
            ) from error
        order = host_by_host([place.node for place in places])
        self._actors.handles = [handles[number] for number in order]
        self._actors.places = [places[number] for number in order]

    def _introduce(self, ray: Any) -> None:
        """Gives each actor its rank, a fresh secret, and a port of rank 0's at which to meet."""
        handles = self._actors.handles
        try:
            port = ray.get(handles[0].hold_port.remote())
            environments = rank_environments(self._actors.places, port)
            secret = Secret.make().text()
            ray.get(
                [
                    handle.prepare.remote({**environment, **self._variables}, secret)
                    for handle, environment in zip(handles, environments, strict=True)
                ]
            )
        except find_ray("exceptions").RayActorError as error:
            raise RankLostError(
                f"a worker of this executor is gone. {_ADVICE} ({error})"
            ) from error
        self._is_to_meet_anew = False


def _is_of_lost_rank(error: Exception) -> bool:
    """Whether a rank has failed only because another was gone."""
    return isinstance(error, CollectiveError)
