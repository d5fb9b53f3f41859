"""Ranks on Ray that come and go: an actor for each worker, replaced where it dies, as nodes come
and go.

    Ray's nodes ─ HostsFound ─▶ Conductor ─▶ ActorStarter ─▶ actors
                                    ▲                          │
                                    └────────── Ended ─────────┘

The conductor runs in the thread that calls `run`, with the job's secret, and talks to the workers
itself; Ray starts their processes and tells of their ends.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import CollectiveError, PlacementError, repr_of
from lockstitch.launcher_link.client import REACHED_AT
from lockstitch.launcher_link.conductor import Conductor, NewWorld, Surroundings
from lockstitch.launcher_link.rank_coordinator import CoordinatorOptions, Ended, HostsFound
from lockstitch.ray.engine import find_ray, running_ray
from lockstitch.ray.placement import describe, living_nodes
from lockstitch.ray.worker import HvdWorker, Outcome
from lockstitch.rendezvous.reaching import say
from lockstitch.trust import Secret

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping

    from lockstitch.launcher_link.slots import Slot
    from lockstitch.ray.calls import Call
    from lockstitch.ray.settings import Settings, WorkerResources

_LOOK_SECONDS: Final = 1.0
_SECONDS_WITHOUT_ROOM: Final = 10.0
_LEAST_START_SECONDS: Final = 120.0
"""Processes that import torch take their time on a busy node."""


@dataclass(frozen=True)
class ElasticPlan:
    """How many workers there may be. Raises `ValueError` for numbers that make no sense."""

    resources: WorkerResources
    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_seconds: tuple[float, float] = (0.0, 0.0)
    elastic_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.min_workers < 1:
            raise ValueError(f"min_workers must be at least 1, not {self.min_workers}")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ValueError(f"{self.min_workers} workers are more than {self.max_workers}")

    def options(self, wanted: int, start_seconds: float) -> CoordinatorOptions:
        """Returns what the rank coordinator is told. `wanted`: how many workers the first world
        waits for."""
        return CoordinatorOptions(
            wanted,
            self.min_workers,
            self.max_workers,
            self.reset_limit,
            start_seconds=start_seconds,
            elastic_seconds=self.elastic_seconds,
            cooldown_seconds=self.cooldown_seconds,
            is_fixed=False,
        )


@dataclass(frozen=True)
class WorkerTask:
    """What each worker does. `needs_executable`: the function is called with what `begin` made."""

    call: Call
    needs_executable: bool = False
    begin: Call | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    queue: Any = None
    """To which it logs."""


class NodeDiscovery:
    """Which nodes have room for how many workers, as Ray says, or as `discovery` does: an object
    whose method `find_available_hosts_and_slots` returns slots by the address or number of a node,
    or by a name X of which the node has a resource `node:X`: such a name is a host of its own."""

    def __init__(self, resources: WorkerResources, discovery: Any = None) -> None:
        self._resources = resources
        self._discovery = discovery
        self._nodes: dict[str, Mapping[str, Any]] = {}
        """By name, as Ray has described them."""

    def slots(self) -> tuple[tuple[str, int], ...]:
        """Returns the slots of each node that has any; those known longest come first."""
        nodes = {node["NodeID"]: node for node in living_nodes()}
        self._nodes.update(nodes)
        if self._discovery is None:
            found = {
                name: self._resources.slots_of(node["Resources"]) for name, node in nodes.items()
            }
        else:
            told = self._discovery.find_available_hosts_and_slots()
            found = {
                name: int(told.get(name, told.get(node["NodeManagerAddress"], 0)))
                for name, node in nodes.items()
            }
            addresses = {node["NodeManagerAddress"] for node in nodes.values()}
            for name in told.keys() - nodes.keys() - addresses:
                for node in nodes.values():
                    if f"node:{name}" in node["Resources"]:
                        self._nodes[name], found[name] = node, int(told[name])
        return tuple((name, found[name]) for name in self._nodes if found.get(name, 0) > 0)

    def number_of(self, node: str) -> str:
        """Returns by which number Ray knows a node that has been found."""
        return str(self._nodes[node]["NodeID"])

    def address_of(self, node: str) -> str:
        """Returns where other nodes reach a node that has been found."""
        return str(self._nodes[node]["NodeManagerAddress"])

    def wait_for_slots(self, plan: ElasticPlan, seconds: float) -> tuple[tuple[str, int], ...]:
        """Returns the slots once there are enough for the least number of workers. Raises
        `PlacementError` where there are not in time."""
        deadline = SYSTEM_CLOCK.now() + seconds
        while True:
            slots = self.slots()
            count = sum(count for _, count in slots)
            if count >= plan.min_workers:
                return slots
            if SYSTEM_CLOCK.now() >= deadline:
                raise PlacementError(
                    f"{plan.min_workers} workers of {plan.resources.bundle()} each are wanted at "
                    f"least, but the Ray cluster has room for {count} after {seconds:g} s. Of its "
                    f"nodes {describe(living_nodes())}"
                )
            SYSTEM_CLOCK.wait(threading.Event(), _LOOK_SECONDS)


class ActorStarter:
    """Starts workers as actors on the node of their slot (`launcher_link.conductor.Starter`).
    `post` is told of each that ends."""

    def __init__(
        self,
        task: WorkerTask,
        plan: ElasticPlan,
        secret: Secret,
        discovery: NodeDiscovery,
        post: Callable[[Ended], None],
    ) -> None:
        ray = running_ray()
        self._task = task
        self._plan = plan
        self._secret = secret.text()
        self._discovery = discovery
        self._post = post
        self._call = task.call.put()
        self._begin_call = None if task.begin is None else task.begin.put()
        self._class = ray.remote(HvdWorker)
        self._handles: dict[int, Any] = {}
        self._nodes: dict[int, str] = {}
        self.values: dict[int, Any] = {}
        """What has been returned, by worker."""
        self.errors: list[tuple[str, Exception]] = []
        """What workers have failed of, with who they were."""

    def __repr__(self) -> str:
        return f"<ActorStarter · {len(self._handles)} workers>"

    def start(self, worker: int, slot: Slot, environment: Mapping[str, str]) -> None:
        """Starts a worker (`Starter.start`)."""
        address = self._discovery.address_of(slot.host)
        self._nodes[worker] = address
        try:
            reference = self._begin(worker, slot, {**environment, REACHED_AT: address})
        except Exception as error:  # noqa: BLE001 - of Ray's; told as an end
            self._fail(worker, error)
            return
        reference.future().add_done_callback(partial(self._note_end, worker))

    def stop(self, worker: int, number: signal.Signals) -> None:
        """Ends a worker (`Starter.stop`); Ray has but one way to end an actor that is busy."""
        del number
        handle = self._handles.get(worker)
        if handle is not None:
            find_ray().kill(handle)

    def close(self) -> None:
        """Ends all workers; harmless when repeated."""
        for handle in list(self._handles.values()):
            find_ray().kill(handle)
        self._handles.clear()

    def _begin(self, worker: int, slot: Slot, environment: dict[str, str]) -> Any:
        task, resources = self._task, self._plan.resources
        strategy = find_ray("util.scheduling_strategies").NodeAffinitySchedulingStrategy
        handle = self._class.options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            scheduling_strategy=strategy(self._discovery.number_of(slot.host), soft=False),
        ).remote()
        self._handles[worker] = handle
        environment["LOCKSTITCH_ADDRESS"] = environment[REACHED_AT]
        handle.prepare.remote({**environment, **task.variables}, self._secret)
        if task.queue is not None:
            handle.set_queue.remote(task.queue)
        return handle.live.remote(self._call, self._begin_call, task.needs_executable)

    def _note_end(self, worker: int, future: Any) -> None:
        """Called when a worker has returned something or is gone, in the thread by which Ray
        itself works: what would wait for Ray here waits for ever. An actor ends when nobody refers
        to it any more."""
        error = future.exception()
        if error is not None:
            self._fail(worker, error)
            return
        outcome: Outcome = future.result()
        if not outcome.is_dismissed:
            self.values[worker] = outcome.value
        self._handles.pop(worker, None)
        self._post(Ended(worker, is_well=True))

    def _fail(self, worker: int, error: Exception) -> None:
        self.errors.append((f"worker {worker} on node {self._nodes[worker]}", error))
        self._handles.pop(worker, None)
        self._post(Ended(worker, is_well=False))


class ElasticJob:
    """A job whose workers come and go."""

    def __init__(self, plan: ElasticPlan, settings: Settings) -> None:
        self._plan = plan
        self._settings = settings
        self._discovery = NodeDiscovery(plan.resources, settings.discovery)

    def __repr__(self) -> str:
        return f"<ElasticJob of {self._plan.min_workers} to {self._plan.max_workers} workers>"

    def start(self) -> None:
        """Waits until there is room. Raises `PlacementError` where there is none in time, and
        `CollectiveError` where this program is not on a node of the cluster."""
        running_ray()
        if find_ray("util.client").ray.is_connected():
            raise CollectiveError(
                "workers that come and go have to reach this program, which is connected to the "
                "cluster from outside: run it on a node (ray job submit)"
            )
        seconds = self._settings.placement_group_timeout_s
        self._discovery.wait_for_slots(
            self._plan, _SECONDS_WITHOUT_ROOM if seconds is None else seconds
        )

    def run(self, task: WorkerTask) -> list[Any]:
        """Runs a function on all workers; returns what the ranks of the last world have returned,
        in their order. Raises `CollectiveError` where the job fails, or one of them has returned
        nothing."""
        ray, secret = running_ray(), Secret.make()
        slots = self._discovery.slots()
        starter = ActorStarter(
            task, self._plan, secret, self._discovery, lambda ended: conductor.post(ended)
        )
        surroundings = Surroundings(
            f"tcp:{ray.util.get_node_ip_address()}:0",
            self._meeting,
            tell_of_world=_tell_of_world,
            tell_of_wait=say,
        )
        seconds = max(self._settings.timeout_s, _LEAST_START_SECONDS)
        options = self._plan.options(self._wanted(ray, slots), seconds)
        conductor = Conductor(options, secret, starter, surroundings)
        watch = _Watch(self._discovery, slots, conductor.post)
        conductor.post(HostsFound(slots))
        try:
            with watch:
                conductor.run()
        finally:
            starter.close()
            conductor.close()
        reason = conductor.reason or conductor.missing_results(starter.values)
        if reason:
            raise _failure(reason, starter.errors)
        return [starter.values[worker] for worker in conductor.last_world]

    def _wanted(self, ray: Any, slots: tuple[tuple[str, int], ...]) -> int:
        """Returns how many workers the first world waits for: as many as there is room for now."""
        free = self._plan.resources.slots_of(ray.available_resources())
        wanted = min(free, sum(count for _, count in slots))
        if self._plan.max_workers is not None:
            wanted = min(wanted, self._plan.max_workers)
        return max(wanted, self._plan.min_workers)

    def _meeting(self, world: NewWorld) -> str:
        return f"tcp://{self._discovery.address_of(world.hosts[0])}:{world.port}"


class _Watch:
    """Looks every second which nodes there are, in a thread; a context manager."""

    def __init__(
        self,
        discovery: NodeDiscovery,
        known: tuple[tuple[str, int], ...],
        post: Callable[[HostsFound], None],
    ) -> None:
        self._discovery = discovery
        self._known = known
        self._post = post
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstitch nodes of Ray")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        complaint = ""
        while not self._is_over.wait(_LOOK_SECONDS):
            try:
                slots = self._discovery.slots()
            except Exception as error:  # noqa: BLE001 - of Ray's or the program's; said, tried again
                if str(error) != complaint:
                    complaint = str(error)
                    say(f"the nodes of the Ray cluster are not known at present: {error}")
                continue
            if slots != self._known:
                self._known = slots
                self._post(HostsFound(slots))


def _tell_of_world(world: NewWorld) -> None:
    if world.generation > 1:
        say(f"the ranks meet anew: {len(world.hosts)} of them")


def _failure(reason: str, errors: list[tuple[str, Exception]]) -> CollectiveError:
    """Returns the error of a job that has failed: its cause is what a worker has raised first that
    had not merely lost another rank."""
    own = [each for each in errors if not isinstance(each[1], CollectiveError)] or errors
    if not own:
        return CollectiveError(f"the job has failed: {reason}")
    who, cause = own[0]
    error = CollectiveError(f"the job has failed: {reason}. {who} failed first: {repr_of(cause)}")
    error.__cause__ = cause
    return error
