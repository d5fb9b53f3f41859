"""What each worker has registered to be part of checkpoints, by name."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.checkpoint.structure import Copy, Encoder
from lockstitch.errors import LockstitchError, PeerDiedError
from lockstitch.nn.api import RemoteModule
from lockstitch.optim import DistributedOptimizer
from lockstitch.optim.update_lock import UpdateLock
from lockstitch.rpc import RRef, get_worker_infos, rpc_async, rpc_sync
from lockstitch.runtime.worker import current_worker
from lockstitch.torch_internals.modules import children_of
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lockstitch.ids import WorkerInfo
    from lockstitch.runtime.worker import Worker


_MOST_SUPERSEDED: Final = 100
_SUPERSEDED: Final = "another worker has begun to save: one at a time"


class CheckpointError(LockstitchError):
    """A checkpoint cannot be saved, or does not fit what is registered."""


class CheckpointRegistry:
    """What one worker has registered; a service of the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._things: dict[str, Any] = {}
        self.elsewhere: dict[str, WorkerInfo] = {}
        """The owners of what this worker has registered by a reference, by name."""
        self.pending: dict[str, dict[str, Any]] = {}
        """States that have been read and are still to be put in place, by attempt to load."""
        self._copied: dict[str, Copy] = {}
        """The latest copy of states that is still to be written, by attempt to save."""
        self._superseded: deque[str] = deque(maxlen=_MOST_SUPERSEDED)
        """Attempts to save whose copies were dropped for those of another."""
        self._copying = threading.Lock()
        self._parts: dict[str, dict[str, dict[str, Any]]] = {}
        """Parts of states that have been read for optimizers of other workers, and are still to be
        put in place, by attempt to load and by name."""
        self._saving: set[str] = set()
        """The addresses of folders into which this worker has others save now."""

    @classmethod
    def of(cls, worker: Worker) -> CheckpointRegistry:
        """Returns the registry of that worker."""
        return worker.obtain(cls, lambda: cls(worker))

    def __repr__(self) -> str:
        names = ", ".join(self.names()) or "nothing"
        return f"<CheckpointRegistry of {self._worker.name!r} · {names}>"

    def add(self, name: str, thing: Any) -> bool:
        """Registers a thing of this worker; raises what `register` raises. Returns whether it is
        new."""
        if not name:
            raise ValueError("what is registered needs a name")
        _check_kind(name, thing)
        _check_state(name, thing)
        with self._lock:
            if name in self._things and self._things[name] is not thing:
                raise _taken(name, self._worker.name)
            is_known = name in self._things
            self._things[name] = thing
        if is_known:
            return False
        try:
            # It is in already: of two workers that register the same name at once, one sees it.
            self._check_is_unique(name)
        except BaseException:
            self.remove(name)
            raise
        return True

    def begin_save(self, address: str) -> bool:
        """Notes that this worker has others save into a folder; False where it does already."""
        with self._lock:
            is_free = address not in self._saving
            self._saving.add(address)
        return is_free

    def end_save(self, address: str) -> None:
        """Notes that this has ended."""
        with self._lock:
            self._saving.discard(address)

    def holds(self, name: str) -> bool:
        """Whether something is registered here under that name."""
        return name in self._things

    def _check_is_unique(self, name: str) -> None:
        others = [each for each in get_worker_infos() if each.worker != self._worker.id]
        answers = [(each, rpc_async(each, _holds, (name,))) for each in others]
        for other, answer in answers:
            with contextlib.suppress(PeerDiedError):  # and what it had registered with it
                if answer.wait():
                    raise _taken(name, other.name)

    def remove(self, name: str) -> None:
        """Removes what is registered under `name`; harmless when nothing is."""
        with self._lock:
            self._things.pop(name, None)

    def names(self) -> list[str]:
        """Returns the names, in the order in which they were registered."""
        with self._lock:
            return list(self._things)

    def things(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns what is registered under these names."""
        with self._lock:
            return {name: self._things[name] for name in names}

    # ------------------------------------------------------------ what a save has copied

    def copy(
        self, attempt: str, states: Mapping[str, object], own: Collection[str] = ()
    ) -> dict[str, Any]:
        """Copies states for a save, in place of what an earlier one has left; returns what is plain
        of them, as JSON. What is plain of `own` is written with the tensors. Raises
        `CheckpointError` where a later save has dropped what was copied for this one before."""
        with UpdateLock.of(self._worker), self._copying:  # while no optimizer steps on this worker
            copy = self._copied.get(attempt)
            if copy is None:
                if attempt in self._superseded:
                    raise CheckpointError(_SUPERSEDED)
                copy = Copy({}, {})
                self._superseded.extend(self._copied)
                self._copied = {attempt: copy}
            encoder = Encoder(tensors=copy.tensors)
            plain = {name: encoder.encode(state, name) for name, state in states.items()}
            copy.plain.update({name: plain[name] for name in own})
            return plain

    def take_copy(self, attempt: str) -> Copy:
        """Hands out what was copied for a save. Raises `CheckpointError` where another has begun
        meanwhile."""
        copy = self._copied.pop(attempt, None)
        if copy is None:
            raise CheckpointError(_SUPERSEDED)
        return copy

    # ------------------------------------------------------------ what a load has read

    def keep_part(self, attempt: str, name: str, state: dict[str, Any]) -> None:
        """Keeps what was read for an optimizer of another worker, until that asks for it."""
        with self._lock:
            self._parts.setdefault(attempt, {})[name] = state

    def take_part(self, attempt: str, name: str) -> dict[str, Any]:
        """Hands it out."""
        with self._lock:
            parts = self._parts[attempt]
            state = parts.pop(name)
            if not parts:
                del self._parts[attempt]
            return state

    def forget(self, attempt: str) -> None:
        """Drops what an attempt that has failed has left here."""
        self.pending.pop(attempt, None)
        self._copied.pop(attempt, None)
        with self._lock:
            self._parts.pop(attempt, None)

    def put_back(self, states: dict[str, Any]) -> None:
        """Gives the registered things these states. Raises what they raise."""
        with self._lock:
            things = {name: self._things[name] for name in states}
        for name, thing in things.items():
            # An optimizer over several workers takes the turns itself, on each of them.
            is_stepped = isinstance(thing, (torch.Tensor, torch.nn.Module))
            with UpdateLock.of(self._worker) if is_stepped else contextlib.nullcontext():
                _put_back(name, thing, states[name])

    def check_fit(self, states: dict[str, Any]) -> None:
        """Raises `ValueError` where a tensor's shape is not that of what it belongs to."""
        with self._lock:
            things = {name: self._things[name] for name in states}
        for name, thing in things.items():
            if isinstance(thing, torch.Tensor):
                _check_shape(name, thing, states[name])
            elif isinstance(thing, torch.nn.Module):
                _check_module(name, thing, states[name])


def register(name: str, thing: object) -> None:
    """Makes `thing` part of every checkpoint from now on, under `name`, which must be unique in the
    group.

    `thing`: a module, an optimizer or anything with `state_dict` and `load_state_dict`; a tensor; a
    dict or list of plain values, which loading fills in place (step counters, say); or a reference
    to one of these or a `RemoteModule`, which is then registered where it lives. A state may hold
    dense tensors of real numbers, numbers, strings, True, False, None, and lists, tuples and dicts
    of these. `thing` is kept alive until `unregister`.

    Raises `TypeError` for other things, and for those whose state cannot be saved as it is now;
    `ValueError` for a name that is taken, here or on another worker: all are asked. Registering the
    same thing again changes nothing.
    """
    register_here_or_there(name, thing)


@needed
def register_here_or_there(name: str, thing: object) -> bool:
    """Does what `register` does; returns whether the thing was not registered before."""
    registry = CheckpointRegistry.of(current_worker())
    while isinstance(thing, (RRef, RemoteModule)):
        reference = thing if isinstance(thing, RRef) else thing.get_module_rref()
        if not reference.is_owner():
            is_new = rpc_sync(reference.owner(), register_here_or_there, (name, reference))
            registry.elsewhere[name] = reference.owner()
            return is_new
        thing = reference.local_value()
    return registry.add(name, thing)


def unregister(name: str) -> None:
    """Ends that what this worker has registered under `name`, itself or by a reference, is part of
    checkpoints; harmless when it has registered nothing."""
    registry = CheckpointRegistry.of(current_worker())
    registry.remove(name)
    owner = registry.elsewhere.pop(name, None)
    if owner is not None:
        with contextlib.suppress(PeerDiedError):
            rpc_sync(owner, unregister, (name,))


needed(register)
needed(unregister)


@needed
def _holds(name: str) -> bool:
    return CheckpointRegistry.of(current_worker()).holds(name)


def _taken(name: str, worker: str) -> ValueError:
    return ValueError(
        f"{name!r} is registered already on worker {worker!r}, and a name must be unique in the "
        "group: choose another, or unregister that first"
    )


def _check_kind(name: str, thing: object) -> None:
    has_state = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
    if not has_state and not isinstance(thing, (torch.Tensor, MutableMapping, MutableSequence)):
        raise TypeError(
            f"{name!r} is of type {type(thing).__name__}: register a tensor, a dict, a list, or "
            "something with state_dict() and load_state_dict()"
        )


def _check_state(name: str, thing: object) -> None:
    """Raises `TypeError` where `save` would: better now than when a training has run for a day."""
    if isinstance(thing, DistributedOptimizer):
        return  # it would ask all who own parameters, and theirs are optimizers of torch
    if isinstance(thing, torch.nn.Module):
        _check_is_here(name, thing)
    Encoder(copy=False).encode(state_of(thing), name)


def _check_is_here(path: str, module: torch.nn.Module) -> None:
    for name, child in children_of(module).items():
        if isinstance(child, RemoteModule):
            raise TypeError(
                f"{path}.{name} is a RemoteModule, whose parameters are not here but on "
                f"{child.on!r}: register it under a name of its own, and the parts that are here "
                "under theirs"
            )
        if child is not None:
            _check_is_here(f"{path}.{name}", child)


def state_of(thing: Any) -> Any:
    """What is saved of a thing; tensors may still be the originals."""
    return thing.state_dict() if hasattr(thing, "state_dict") else thing


def _put_back(name: str, thing: Any, state: Any) -> None:
    if hasattr(thing, "load_state_dict"):
        thing.load_state_dict(state)
    elif isinstance(thing, torch.Tensor):
        _check_shape(name, thing, state)
        with torch.no_grad():
            thing.copy_(state)
    else:
        thing.clear()
        if isinstance(thing, MutableMapping):
            thing.update(state)
        else:
            thing.extend(state)


def _check_shape(name: str, thing: torch.Tensor, state: Any) -> None:
    if not isinstance(state, torch.Tensor) or state.shape != thing.shape:
        saved = list(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
        raise ValueError(f"{name!r} has the shape {list(thing.shape)}, but was saved as {saved}")


def _check_module(name: str, module: torch.nn.Module, state: Any) -> None:
    own = module.state_dict()
    if not isinstance(state, dict) or own.keys() != state.keys():
        differing = sorted(own.keys() ^ (state.keys() if isinstance(state, dict) else set()))
        raise ValueError(f"{name!r} was saved from another module: {', '.join(differing)} differ")
    for key, value in own.items():
        if isinstance(value, torch.Tensor):
            _check_shape(f"{name}.{key}", value, state[key])
