"""A group of rpc workers on Ray: `with lockstitch.ray.workers(4) as group:`.

The driver is a member, the first one, and invites an actor for each worker. Who dies is replaced
under its name, as long as it has restarts left; the newcomer gets an invitation of that moment.

    membership events, ends of joining ──▶ queue ──▶ thread of the group ──▶ Ray: new actors

All that concerns Ray after the start is done in that one thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from lockstitch import rpc
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import PlacementError, RpcError
from lockstitch.folders import Folder
from lockstitch.ray.engine import find_ray, running_ray
from lockstitch.ray.member import Joining, RpcMember, main_definitions
from lockstitch.ray.placement import STRATEGIES, Wish, give_back, reserve
from lockstitch.rendezvous.reaching import say
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_START_SECONDS: Final = 120.0
_LEAVE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 1.0
_RESOURCES: Final = {"CPU": 1.0}


@dataclass(frozen=True)
class GroupPlan:
    """How many workers there are to be, where, and how often each is replaced. Raises `ValueError`
    for what makes no sense."""

    names: tuple[str, ...]
    resources: Mapping[str, float]
    placement: str
    max_restarts: int
    driver: str

    def __post_init__(self) -> None:
        everybody = (*self.names, self.driver)
        if not self.names:
            raise ValueError("a group needs at least one worker")
        if len(set(everybody)) < len(everybody):
            raise ValueError(f"workers and driver need different names, not {list(everybody)}")
        if self.placement not in STRATEGIES:
            raise ValueError(f"placement is one of {', '.join(STRATEGIES)}, not {self.placement!r}")
        if self.max_restarts < -1:
            raise ValueError(f"max_restarts is a number, or -1 for any, not {self.max_restarts}")
        if any(amount <= 0 for amount in self.resources.values()) or not self.resources:
            raise ValueError(f"a worker needs some resources, not {dict(self.resources)}")

    def wish(self) -> Wish:
        """Returns the room that the workers need."""
        return Wish([self.resources] * len(self.names), self.placement)


@dataclass
class _Member:
    """A worker as the driver knows it. Only the thread of the group changes it."""

    number: int
    name: str
    handle: Any = None
    life: int = 0
    """How many actors there have been for it, this one included."""
    restarts: int = 0
    """How often it has died as a member and was started anew."""
    away_since: float = 0.0
    """When it was lost, or first started."""
    is_in: bool = False
    error: BaseException | None = None
    """Why there is no other life for it."""


@dataclass(frozen=True)
class _Joined:
    """The attempt of a worker to join, in a certain life, has ended."""

    number: int
    life: int
    error: BaseException | None


@dataclass(frozen=True)
class _Died:
    """The group has seen a worker die."""

    name: str
    cause: str


@dataclass
class _Parts:
    """What the group has while it runs."""

    room: Any
    folder: Folder
    secret: Secret
    is_founded: bool = False
    """Whether this process is a member."""
    forget: Callable[[], None] = lambda: None
    members: list[_Member] = field(default_factory=list)


class RpcGroup:
    """The workers of a group, and this process, which is a member of it: a context manager, within
    which `lockstitch.rpc` reaches every worker by name. See `workers`."""

    def __init__(
        self,
        plan: GroupPlan,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        placement_group_timeout_s: float | None,
    ) -> None:
        find_ray()
        self._plan = plan
        self._options = dict(options)
        self._environment = dict(environment)
        self._room_seconds = placement_group_timeout_s
        self._parts: _Parts | None = None
        self._events: SimpleQueue[_Joined | _Died | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        members = () if self._parts is None else self._parts.members
        present = sum(member.is_in for member in members)
        return f"<RpcGroup · {present} of {len(self._plan.names)} workers>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the workers, without that of the driver."""
        return self._plan.names

    def __len__(self) -> int:
        return len(self._plan.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._plan.names)

    def restarts(self, name: str) -> int:
        """Returns how often a worker has been replaced."""
        return next(each.restarts for each in self._running.members if each.name == name)

    # ------------------------------------------------------------ from the beginning to the end

    def __enter__(self) -> RpcGroup:
        ray = running_ray()
        room = reserve(self._plan.wish(), self._room_seconds)
        self._parts = _Parts(room, Folder(), Secret.make())
        try:
            self._found(ray.util.get_node_ip_address())
            self._thread = threading.Thread(target=self._run, name="lockstitch group on Ray")
            self._thread.start()
            self._wait_for_all()
        except BaseException:
            self._close(is_well=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._close(is_well=kind is None)

    def _found(self, address: str) -> None:
        """Makes this process the first member, and begins to watch the others."""
        parts, plan = self._running, self._plan
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{parts.folder.path}/store",
            address=address,
            secret=parts.secret,
            **self._options,
        )
        rpc.init_rpc(plan.driver, rank=len(plan.names), rpc_backend_options=options)
        parts.is_founded = True
        now = SYSTEM_CLOCK.now()
        parts.members = [
            _Member(number, name, away_since=now) for number, name in enumerate(plan.names)
        ]
        parts.forget = rpc.add_membership_callback(self._hear)
        for member in parts.members:
            self._start(member)

    def _wait_for_all(self) -> None:
        deadline = SYSTEM_CLOCK.now() + _START_SECONDS
        with self._changed:
            while True:
                failed = [each for each in self._running.members if each.error is not None]
                if failed:
                    raise RpcError(
                        f"worker {failed[0].name!r} could not be started: {failed[0].error}"
                    ) from failed[0].error
                missing = [each.name for each in self._running.members if not each.is_in]
                if not missing:
                    return
                if SYSTEM_CLOCK.now() >= deadline:
                    raise PlacementError(
                        f"{', '.join(missing)} did not join within {_START_SECONDS:g} s, although "
                        f"there was room for {self._plan.wish()}"
                    )
                self._changed.wait(1.0)

    def _close(self, *, is_well: bool) -> None:
        """Leaves the group, has the workers leave it, and gives their room back."""
        parts = self._running
        parts.forget()
        self._events.put(None)
        if self._thread is not None:
            self._thread.join()
        self._parts = None
        try:
            if parts.is_founded:
                rpc.shutdown(graceful=is_well)
        finally:
            ray = find_ray()
            leaving = [each.handle.leave.remote() for each in parts.members if each.is_in]
            if is_well and leaving:
                ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS)
            for member in parts.members:
                if member.handle is not None:
                    ray.kill(member.handle)
            give_back(parts.room)
            parts.folder.close()

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the group has no workers outside of its block")
        return self._parts

    # ------------------------------------------------------------ who dies

    def _hear(self, event: rpc.MembershipEvent) -> None:
        if event.kind == "died":
            self._events.put(_Died(event.worker.name, event.cause))

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            members = self._running.members
            for member in members if isinstance(event, _Died) else [members[event.number]]:
                try:
                    self._take(member, event)
                except Exception as error:  # noqa: BLE001 - of Ray, which may be gone itself
                    self._give_up(member, error)
            with self._changed:
                self._changed.notify_all()

    def _take(self, member: _Member, event: _Joined | _Died) -> None:
        if isinstance(event, _Joined):
            self._note_joined(member, event)
        elif member.name == event.name and member.is_in:
            self._replace(member, RpcError(event.cause))

    def _note_joined(self, member: _Member, event: _Joined) -> None:
        if event.life != member.life:
            return
        if event.error is None:
            member.is_in = True
            if all(info.name != member.name for info in rpc.get_worker_infos()):
                self._replace(member, RpcError("it died as soon as it had joined"))
        elif not isinstance(event.error, find_ray("exceptions").RayActorError):
            self._give_up(member, event.error)  # it has said why: it could not the next time either
        elif SYSTEM_CLOCK.now() - member.away_since > _START_SECONDS:
            self._give_up(member, event.error)
        else:  # it never was in: its node is going perhaps, and Ray will find another
            SYSTEM_CLOCK.wait(threading.Event(), _PAUSE_SECONDS)
            self._start(member)

    def _replace(self, member: _Member, error: BaseException) -> None:
        member.is_in = False
        member.away_since = SYSTEM_CLOCK.now()
        if 0 <= self._plan.max_restarts <= member.restarts:
            self._give_up(member, error)
            return
        member.restarts += 1
        find_ray().kill(member.handle)  # it may have been cut off only
        self._start(member)

    def _give_up(self, member: _Member, error: BaseException) -> None:
        member.error = error
        say(f"worker {member.name!r} is gone and is not replaced any more: {error}")

    def _start(self, member: _Member) -> None:
        """Begins another life of a worker, with an invitation of now."""
        parts, plan = self._running, self._plan
        strategy = find_ray("util.scheduling_strategies").PlacementGroupSchedulingStrategy
        amounts = dict(plan.resources)
        member.life += 1
        member.handle = (
            find_ray()
            .remote(RpcMember)
            .options(
                num_cpus=amounts.pop("CPU", 0),
                num_gpus=amounts.pop("GPU", 0),
                resources=amounts,
                scheduling_strategy=strategy(parts.room, member.number),
            )
            .remote(member.name)
        )
        joining = Joining(
            member.name,
            member.number,
            rpc.invitation(),
            main_definitions(),
            self._options,
            self._environment,
        )
        reference = member.handle.join.remote(joining, parts.secret.text())
        reference.future().add_done_callback(partial(self._note_end, member.number, member.life))

    def _note_end(self, number: int, life: int, future: Any) -> None:
        """Called in the thread by which Ray itself works: it may not wait for Ray."""
        self._events.put(_Joined(number, life, future.exception()))


def workers(  # noqa: PLR0913 - each is a keyword with a default
    workers: int | Sequence[str] = 2,
    *,
    resources_per_worker: Mapping[str, float] = _RESOURCES,
    placement: str = "SPREAD",
    max_restarts: int = 3,
    driver: str = "driver",
    rpc_options: Mapping[str, Any] | None = None,
    env_vars: Mapping[str, str] | None = None,
    placement_group_timeout_s: float | None = None,
) -> RpcGroup:
    """Returns a group of workers of `lockstitch.rpc` on a cluster of Ray, as a context manager.

    `workers`: how many (2), named worker0, worker1, …, or their names; their ranks are their places
    in this order. Within the block this process is a member as well, named `driver`, and calls them
    by `rpc_sync`, `remote` and so on. What the program's `__main__` has defined by then goes along.
    `resources_per_worker`: what Ray reserves for each ({"CPU": 1}). `placement`: "SPREAD" over
    nodes (best effort), "PACK" onto few, or "STRICT_SPREAD" and "STRICT_PACK". `max_restarts`: how
    often a worker that has died is started anew, under its name and rank (3; -1: any number); its
    values are gone, references to them raise `OwnerDiedError`. `rpc_options`: more arguments for
    everybody's `TensorPipeRpcBackendOptions`; `env_vars`: variables for the workers.
    `placement_group_timeout_s`: seconds to wait for room (`RayExecutor.create_settings`).

    The job's secret goes to the workers by a call and is held in memory only.

    Raises `ImportError` where there is no Ray and `ValueError` for what makes no sense. Entering
    raises `PlacementError` where the cluster has no room in time, `RpcError` with the reason where
    a worker could not be started, and `RuntimeError` where this process is a worker already.
    """
    if isinstance(workers, int):
        workers = [f"worker{number}" for number in range(workers)]
    plan = GroupPlan(tuple(workers), dict(resources_per_worker), placement, max_restarts, driver)
    return RpcGroup(plan, rpc_options or {}, env_vars or {}, placement_group_timeout_s)
