"""What a distributed optimizer asks of the owners of its parameters, and how their answers are
taken together.

All owners are asked at once, and all have ended before anything is raised: so an error can say who
has done what was asked. The functions below the line run on the owners.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.nn import Module

from lockstitch.errors import RpcError, add_note, text_of
from lockstitch.optim.gradients import gather_gradients
from lockstitch.optim.groups import PARAMS, Change, shown
from lockstitch.optim.local import LocalOptimizer
from lockstitch.optim.update_lock import UpdateLock
from lockstitch.rpc import RRef, rpc_async
from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.runtime.hidden_writes import HiddenWrites
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch.futures import Future
    from torch.optim import Optimizer

    from lockstitch.ids import WorkerInfo

T = TypeVar("T")

Given = tuple["list[RRef[torch.Tensor]]", "list[str] | None", dict[str, Any]]
"""A `GivenGroup`, as it crosses: references, names, options."""


Made = tuple["RRef[LocalOptimizer]", list[dict[str, Any]], dict[str, Any]]
"""The optimizer of an owner, the options of its groups, and its defaults."""

Changes = dict[int, Change]
"""What was assigned to the options of groups, by the owner's numbers of these."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of a question to one owner."""

    owner: WorkerInfo
    value: T | None
    error: Exception | None


def ask_each(
    questions: Iterable[tuple[WorkerInfo, Callable[..., T], tuple[Any, ...]]],
    timeout: float = UNSET_RPC_TIMEOUT,
) -> list[Outcome[T]]:
    """Runs a function with its arguments on each of some owners, all at once; returns when all have
    ended one way or the other. `timeout`: seconds for each, as for any call."""
    futures: list[tuple[WorkerInfo, Future[T] | Exception]] = []
    for owner, function, arguments in questions:
        try:
            futures.append((owner, rpc_async(owner, function, arguments, None, timeout)))
        except Exception as error:  # noqa: BLE001 - for `values` to raise: others may be asked
            futures.append((owner, error))
    return [_outcome(owner, future) for owner, future in futures]


def ask_owners(
    references: Sequence[RRef[Any]],
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
) -> list[Outcome[T]]:
    """`ask_each` for the owners of these references, each with its reference as the first
    argument."""
    return ask_each(
        (reference.owner(), function, (reference, *own))
        for reference, own in zip(references, arguments, strict=True)
    )


def _outcome(owner: WorkerInfo, future: Future[T] | Exception) -> Outcome[T]:
    if isinstance(future, Exception):
        return Outcome(owner, None, future)
    try:
        return Outcome(owner, future.wait(), None)
    except Exception as error:  # noqa: BLE001 - for `values` to raise
        return Outcome(owner, None, error)


def values(outcomes: Sequence[Outcome[T]], done: str = "", consequence: str = "") -> list[T]:
    """The values of all. Where any failed, raises the first one's exception, with notes about the
    others, and says who has `done` what was asked, or the `consequence`."""
    failures = [(each.owner.name, each.error) for each in outcomes if each.error is not None]
    if not failures:
        return [outcome.value for outcome in outcomes]  # type: ignore[misc]
    first = failures[0][1]
    said = "; ".join(filter(None, [_who_has(outcomes, done) if done else "", consequence]))
    if said and isinstance(first, RpcError):
        told = copy.copy(first)  # others may wait for the same, and have it raised too
        told.args = (f"{first}; {said}",)
        told.__cause__, first = first, told
    elif said:
        add_note(first, said)
    for name, other in failures[1:]:
        add_note(first, f"also on worker {name!r}: {type(other).__name__}: {text_of(other)}")
    raise first


def _who_has(outcomes: Sequence[Outcome[Any]], done: str) -> str:
    """Says which owners have done what they were asked, and which have not."""
    have = [repr(each.owner.name) for each in outcomes if each.error is None]
    have_not = [repr(each.owner.name) for each in outcomes if each.error is not None]
    if not have:
        return f"no owner is known to have {done} ({', '.join(have_not)})"
    return f"{done}: {', '.join(have)}; not, or not known to: {', '.join(have_not)}"


# ---------------------------------------------------------------- on the owners


@needed
def new_optimizer(
    optimizer_class: Callable[..., Optimizer],
    given: list[Given],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Made:
    """Makes the optimizer of one owner. Returns it, the options of its groups, and its defaults."""
    is_plain = len(given) == 1 and not given[0][2]
    parameters = _members(given[0]) if is_plain else [_as_group(each) for each in given]
    worker = current_worker()
    local = LocalOptimizer(optimizer_class, parameters, UpdateLock.of(worker), *args, **kwargs)
    HiddenWrites.of(worker).add(local)
    return RRef(local), local.options(), shown(local.optim.defaults)


@needed
def add_groups(reference: RRef[LocalOptimizer], given: list[Given]) -> Made:
    """Adds groups to the optimizer of one owner, all or none; returns what `new_optimizer` does,
    with the options of these groups."""
    local = reference.local_value()
    added = 0
    try:
        for each in given:
            local.add_param_group(_as_group(each))
            added += 1
    except BaseException:
        remove_groups(reference, added)
        raise
    return reference, local.options()[-len(given) :], shown(local.optim.defaults)


@needed
def remove_groups(reference: RRef[LocalOptimizer], count: int) -> None:
    """Takes back the latest groups."""
    for _ in range(count):
        reference.local_value().remove_last_group()


@needed
def change_options(reference: RRef[LocalOptimizer], changes: Changes) -> None:
    """Assigns options of groups, by the owner's numbers of these."""
    reference.local_value().change(changes)


@needed
def step(
    reference: RRef[LocalOptimizer], contexts: list[int], changes: Changes
) -> dict[int, dict[str, Any]]:
    """Steps the optimizer of one owner, whose options are changed before."""
    local = reference.local_value()
    local.change(changes)
    return local.step(gather_gradients(contexts, local.parameters))


@needed
def state_of(reference: RRef[LocalOptimizer], changes: Changes) -> dict[str, Any]:
    """The state of the optimizer of one owner, whose options are changed before."""
    local = reference.local_value()
    local.change(changes)
    return local.state_dict()


@needed
def load_state(reference: RRef[LocalOptimizer], state: dict[str, Any]) -> list[dict[str, Any]]:
    """Gives the optimizer of one owner a state; returns the options of its groups."""
    local = reference.local_value()
    local.load_state_dict(state)
    return local.options()


def _as_group(given: Given) -> dict[str, Any]:
    return {**given[2], PARAMS: _members(given)}


def _members(given: Given) -> list[Any]:
    references, names, _ = given
    parameters = [reference.local_value() for reference in references]
    if any(isinstance(each, Module) for each in parameters):
        raise TypeError(
            "params_rref has a reference to a module: parameters_of(reference) refers to each of "
            "its parameters"
        )
    return parameters if names is None else list(zip(names, parameters, strict=True))
