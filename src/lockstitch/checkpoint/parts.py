"""The state of an optimizer over several workers in a checkpoint: each owner of parameters writes
its own part, and reads what is its part then.

Save: each owner copies the state of its own optimizer, and says what it is, without the tensors: in
their place stands in whose file each will be (`Stored`). The worker that has registered the
optimizer makes one state of these, and writes that.
Load: it takes the state apart for those who own the parameters now, and each finds its tensors in
the files.

An optimizer whose states users' hooks see as a whole is saved and loaded like anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from lockstitch.checkpoint.registry import CheckpointRegistry
from lockstitch.checkpoint.structure import Stored, decode
from lockstitch.optim import DistributedOptimizer
from lockstitch.optim.owners import ask_owners, load_state, state_of, values
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.optim.local import LocalOptimizer
    from lockstitch.optim.owners import Changes
    from lockstitch.rpc import RRef


def is_in_parts(thing: object) -> TypeGuard[DistributedOptimizer]:
    """Whether the state of `thing` is written by several workers."""
    return isinstance(thing, DistributedOptimizer) and not thing.has_state_hooks


def owners_of(optimizer: DistributedOptimizer) -> list[str]:
    """Returns the names of the workers that write parts of its state."""
    return [reference.owner().name for reference in optimizer.remote_optimizers]


def copy_parts(optimizer: DistributedOptimizer, attempt: str, name: str) -> dict[str, Any]:
    """Has each owner copy its part; returns the whole state, with a `Stored` for each tensor."""
    return optimizer.joined_state(_copy_part, attempt, name)


def read_parts(
    optimizer: DistributedOptimizer,
    state: dict[str, Any],
    find: Callable[[Any], Any],
    read: Callable[..., None],
    arguments: tuple[object, ...],
) -> dict[str, Any]:
    """Has each owner read its part of the state by `read(reference, part, *arguments)`, and keep
    it; returns the state, with the options of groups as they are: `find` puts tensors into them.
    Raises what `read` does, and `ValueError` where the state does not fit."""
    state = {**state, "param_groups": find(state["param_groups"])}
    references = optimizer.remote_optimizers
    parts = [(part, *arguments) for part in optimizer.parts_of(state)]
    values(ask_owners(references, read, parts))
    return state


def put_parts_back(
    optimizer: DistributedOptimizer, attempt: str, name: str, state: dict[str, Any]
) -> None:
    """Has each owner give its optimizer what it has read."""
    optimizer.load_parts(state, _put_part_back, [(attempt, name)] * len(owners_of(optimizer)))


# ---------------------------------------------------------------- on the owners


@needed
def _copy_part(
    reference: RRef[LocalOptimizer], changes: Changes, attempt: str, name: str
) -> dict[str, Any]:
    worker = current_worker()
    plain = CheckpointRegistry.of(worker).copy(attempt, {name: state_of(reference, changes)})
    part: dict[str, Any] = decode(plain[name], lambda key: Stored(worker.name, key))
    return part


@needed
def _put_part_back(
    reference: RRef[LocalOptimizer], attempt: str, name: str
) -> list[dict[str, Any]]:
    return load_state(reference, CheckpointRegistry.of(current_worker()).take_part(attempt, name))
