"""What a worker has registered: what belongs into a checkpoint, by name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.optim.turns import Turns
from lockstitch.rpc import RRef, rpc_sync
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from lockstitch.runtime.worker import Worker


class Registered:
    """The registered things of one worker; a service of it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._things: dict[str, Any] = {}
        self.pending: dict[str, dict[str, Any]] = {}
        """States that have been read and are still to be put in place, by load."""

    @classmethod
    def of(cls, worker: Worker) -> Registered:
        """Those of this worker."""
        return worker.obtain(cls, lambda: cls(worker))

    def __repr__(self) -> str:
        return f"<Registered of {self._worker.name!r} · {', '.join(self.names()) or 'nothing'}>"

    def add(self, name: str, thing: Any) -> None:
        """See `register`."""
        if not name:
            raise ValueError("what is registered needs a name")
        _check_kind(name, thing)
        with self._lock:
            if name in self._things and self._things[name] is not thing:
                raise ValueError(
                    f"{name!r} is registered already on worker {self._worker.name!r}; unregister "
                    "it first"
                )
            self._things[name] = thing

    def remove(self, name: str) -> None:
        """See `unregister`."""
        with self._lock:
            self._things.pop(name, None)

    def names(self) -> list[str]:
        """In the order in which they were registered."""
        with self._lock:
            return list(self._things)

    def states(self) -> dict[str, Any]:
        """What is to be saved, by name; tensors may still be the originals."""
        with self._lock:
            things = dict(self._things)
        return {name: _state_of(thing) for name, thing in things.items()}

    def put_back(self, states: dict[str, Any]) -> None:
        """Gives the registered things these states. Raises what they raise."""
        with self._lock:
            things = {name: self._things[name] for name in states}
        for name, thing in things.items():
            # An optimizer over several workers takes the turns itself, on each of them.
            is_stepped = isinstance(thing, (torch.Tensor, torch.nn.Module))
            with Turns.of(self._worker) if is_stepped else contextlib.nullcontext():
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
    """From now on `thing` is part of every checkpoint, under `name`, which must be unique in the
    group.

    `thing`: a module, an optimizer or anything with `state_dict` and `load_state_dict`; a tensor; a
    dict or list of plain values, which loading fills in place (step counters, say); or a reference
    to one of these, which is then registered where its value lives. A state may hold tensors,
    numbers, strings, True, False, None, and lists, tuples and dicts of these. `thing` is kept alive
    until `unregister`. Raises `TypeError` for other things, `ValueError` for a name that is taken
    here.
    """
    worker = current_worker()
    if isinstance(thing, RRef):
        if thing.is_owner():
            thing = thing.local_value()
        else:
            rpc_sync(thing.owner(), register, (name, thing))
            return
    Registered.of(worker).add(name, thing)


def unregister(name: str) -> None:
    """It is no part of checkpoints any more; harmless when this worker has not registered it."""
    Registered.of(current_worker()).remove(name)


needed(register)


def _check_kind(name: str, thing: object) -> None:
    has_state = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
    if not has_state and not isinstance(thing, (torch.Tensor, MutableMapping, MutableSequence)):
        raise TypeError(
            f"{name!r} is of type {type(thing).__name__}: register a tensor, a dict, a list, or "
            "something with state_dict() and load_state_dict()"
        )


def _state_of(thing: Any) -> Any:
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
