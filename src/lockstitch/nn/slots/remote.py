"""A slot on another worker: its replica is made there once, then kept equal.

What travels to it with a call is its part of the batch, what has changed in the module
(`module_changes.py`), and the parameters that have been written to since they were last sent: after
an optimizer's step all that it moved, before the next step none. (What is written through
`tensor.data` does not count: call `DataParallel.close` after it.)
Back come outputs, and in a backward pass gradients.

Each request is a call that ends when the worker dies and not before, made when the one before it
has been answered: so a request that has got lost, with what it told, is noticed, and the slot given
up. What other code on the worker draws from the generator of random numbers is not disturbed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lockstitch.errors import NotInitializedError, PeerDiedError, SerializationError, SlotDiedError
from lockstitch.nn.slots import generators
from lockstitch.nn.slots.base import Gradients, Outcome, Slot, SlotStatistics
from lockstitch.nn.slots.device_execution import DeviceExecutor, at_home
from lockstitch.nn.slots.failures import Failure, describe
from lockstitch.nn.slots.module_changes import trainable
from lockstitch.nn.slots.nesting import inside
from lockstitch.rpc import remote, rpc_async
from lockstitch.runtime.hidden_writes import HiddenWrites
from lockstitch.runtime.worker import current_worker, has_current_worker
from lockstitch.torch_internals.distributed import RemoteDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn
    from torch.futures import Future

    from lockstitch.ids import WorkerInfo
    from lockstitch.nn.slots.base import BackwardRequest, Blueprint, Request
    from lockstitch.rpc import RRef
    from lockstitch.runtime.worker import Worker

_OTHER_KINDS = ("fork", "thread")
_FOREVER = 0
"""A timeout: a forward pass may take long, and a worker that dies ends its calls."""


class ReplicaUpdate(NamedTuple):
    """What comes with each request."""

    leaves: Sequence[tuple[int, torch.Tensor]] = ()
    """Parameters that have changed: their numbers, and what they are now."""
    released: Sequence[int] = ()
    """Forward passes whose graphs are to be forgotten."""


def is_on_worker(place: object) -> bool:
    """Whether an entry of `device_ids` names a worker: "worker1", "rank:2/cuda:0"."""
    if not isinstance(place, str) or place in _OTHER_KINDS:
        return False
    parsed = RemoteDevice(place)
    return parsed.worker_name() is not None or parsed.rank() is not None


def seen_from_here(places: Iterable[Any]) -> list[Any]:
    """`device_ids` as the caller sees them: its own name stands for the device behind it; and since
    the caller always runs the first part, it is put before a list that begins with a worker."""
    seen = [_without_own_name(place) for place in places]
    return ["cpu", *seen] if seen and is_on_worker(seen[0]) else seen


def _without_own_name(place: Any) -> Any:
    if not is_on_worker(place) or not has_current_worker():
        return place
    parsed, own = RemoteDevice(place), current_worker().info
    is_own = own.name == parsed.worker_name() or own.id == parsed.rank()
    return str(parsed.device()) if is_own else place


def _worker_for(place: str) -> Worker:
    """The current worker, if it may have slots on others."""
    if not has_current_worker():
        raise NotInitializedError(
            f"{place!r} in device_ids is neither 'fork', 'thread', 'cpu' nor a device, so it "
            "names a worker: call lockstitch.rpc.init_rpc first"
        )
    worker = current_worker()
    if worker.agent.allowed is not None:
        raise SerializationError(
            f"a slot of DataParallel on another worker ({place}) is not possible in a job with "
            "a registry: its errors and attributes would be pickled. Use slots of this host, "
            "or lockstitch.nn.RemoteModule with the module's class registered"
        )
    return worker


def _owner_at(place: str, parsed: RemoteDevice, worker: Worker) -> WorkerInfo:
    to = parsed.worker_name() or parsed.rank()
    if to is None:
        raise ValueError(f"{place!r} names no worker")
    return worker.agent.resolve(to)


class RemoteSlot(Slot):
    """Slot number `number`, on the worker that `place` names: "worker1", "worker1/cuda:0",
    "rank:1".

    Raises `NotInitializedError` without `init_rpc`, `RpcError` for an unknown worker,
    `SerializationError` for a module that cannot be sent, or in a job with a registry, and
    `SlotDiedError` for a worker that is gone.
    """

    shares_parameters = False

    def __init__(self, place: str, number: int, blueprint: Blueprint) -> None:
        parsed = RemoteDevice(place)
        self._worker = _worker_for(place)
        self._owner = _owner_at(place, parsed, self._worker)
        self.name = f"slot {number} (worker {self._owner.name!r})"
        self.statistics = SlotStatistics()
        self._leaves = list(blueprint.leaves)
        self._writes = HiddenWrites.of(self._worker)
        self._sent = self._writes.states_of(self._leaves)
        self._released: deque[int] = deque()
        self._futures: dict[tuple[str, int], Future[Any]] = {}
        self._latest: Future[Any] | None = None
        self._is_alive = True
        with self._worker.active():
            try:
                self._replica: RRef[Replica] | None = remote(
                    self._owner, Replica, (blueprint.module, str(parsed.device()), self.name)
                )
                self._replica.rpc_sync(timeout=_FOREVER).is_ready()
            except PeerDiedError as error:
                raise SlotDiedError(self.name, str(error)) from error
        self.statistics.parameter_bytes = sum(leaf.nbytes for leaf in self._leaves)

    def start(self, request: Request) -> None:
        states = self._writes.states_of(self._leaves)
        numbers = [i for i, now in enumerate(states) if now != self._sent[i]]
        update = self._update([(i, self._leaves[i].detach()) for i in numbers])
        self._post(("forward", request.number), Replica.forward, update, request)
        for i in numbers:
            self._sent[i] = states[i]
            self.statistics.parameter_bytes += self._leaves[i].nbytes
        self.statistics.passes += request.vjp_of is None
        self.statistics.other_bytes += request.changes.nbytes

    def finish(self, number: int) -> Outcome:
        outcome: Outcome = self._wait(("forward", number))
        return outcome

    def start_backward(self, request: BackwardRequest) -> None:
        self._post(("backward", request.number), Replica.backward, self._update(), request)

    def finish_backward(self, number: int) -> Gradients:
        gradients: Gradients = self._wait(("backward", number))
        return Gradients(gradients.inputs, at_home(gradients.leaves, self._leaves))

    def collect(self) -> Sequence[torch.Tensor | None]:
        self._post(("collect", 0), Replica.collect, self._update())
        return at_home(self._wait(("collect", 0)), self._leaves)

    def release(self, number: int) -> None:
        self._released.append(number)

    @property
    def is_alive(self) -> bool:
        """Waits until the slot has nothing to do."""
        if self._latest is not None and self._is_alive:
            try:
                with self._worker.active():
                    self._latest.wait()
            except Exception:  # noqa: BLE001 - a request has not come as far as the replica
                self._is_alive = False
            self._latest = None
        return self._is_alive

    def close(self) -> None:
        self._is_alive = False
        self._futures.clear()
        self._latest = self._replica = None

    def _update(self, leaves: Sequence[tuple[int, torch.Tensor]] = ()) -> ReplicaUpdate:
        released = [self._released.popleft() for _ in range(len(self._released))]
        for number in released:
            for kind in ("forward", "backward"):
                self._futures.pop((kind, number), None)
        return ReplicaUpdate(leaves, released)

    def _post(self, key: tuple[str, int], method: Callable[..., Any], *args: Any) -> None:
        """Posts a request. After one that could not be sent the slot knows less than it was told:
        it is given up."""
        if self._replica is None or not self.is_alive:
            raise SlotDiedError(self.name, "it has been given up")
        self._is_alive = False
        try:
            with self._worker.active():
                call = (self._replica, method.__name__, args)
                self._latest = rpc_async(self._owner, _run, call, timeout=_FOREVER)
        except PeerDiedError as error:
            raise SlotDiedError(self.name, str(error)) from error
        self._futures[key] = self._latest
        self._is_alive = True

    def _wait(self, key: tuple[str, int]) -> Any:
        try:
            with self._worker.active():
                answer = self._futures.pop(key).wait()
        except PeerDiedError as error:
            self._is_alive = False
            raise SlotDiedError(self.name, str(error)) from error
        except Exception:
            self._is_alive = False  # the request has not come as far as the replica
            raise
        if isinstance(answer, Failure):
            raise answer.error()
        return answer


def _run(replica: RRef[Replica], method: str, args: tuple[Any, ...]) -> Any:
    """Runs a request, on the worker."""
    return replica.local_value().run(method, *args)


class Replica:
    """The module's replica, and what runs it, on the worker."""

    def __init__(self, module: nn.Module, device: str, name: str) -> None:
        self._name = name
        self._device = torch.device(device)
        module.to(self._device)
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = tensor.data.clone()  # it came in memory that is only lent
        self._leaves = trainable(module)
        self._executor = DeviceExecutor(module, self._leaves, self._device, waits=True)

    def is_ready(self) -> bool:
        """Whether it has been made: who asks learns what went wrong."""
        return True

    def run(self, method: str, update: ReplicaUpdate, *args: Any) -> Any:
        """One request. What it raises is returned as a `Failure`."""
        try:
            self._take_in(update)
            with inside():
                return getattr(self, method)(*args)
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            return describe(error, self._name, crosses=True)

    def _take_in(self, update: ReplicaUpdate) -> None:
        for number in update.released:
            self._executor.release(number)
        with torch.no_grad():
            for i, tensor in update.leaves:
                # In place: a graph that has saved it must not be gone through any more.
                self._leaves[i].copy_(tensor)

    def forward(self, request: Request) -> Outcome:
        """Runs the module, and leaves the worker's generator and default dtype as they are."""
        dtype = torch.get_default_dtype()
        try:
            with generators.kept(self._device):
                outcome = self._executor.forward(request)
        finally:
            torch.set_default_dtype(dtype)
        return dataclasses.replace(outcome, tensors=[tensor.cpu() for tensor in outcome.tensors])

    def backward(self, request: BackwardRequest) -> Gradients:
        """Goes back through one forward pass."""
        found = self._executor.backward(request)
        return Gradients(_on_host(found.inputs), _on_host(found.leaves))

    def collect(self) -> list[torch.Tensor | None]:
        """The gradients that have stayed here."""
        return _on_host(self._executor.collect())


def _on_host(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if tensor is None else tensor.cpu() for tensor in tensors]
