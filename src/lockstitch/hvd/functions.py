"""What ranks have in common at the beginning: parameters, the state of an optimizer, objects."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, TypeVar

import cloudpickle
import torch

from lockstitch.errors import CollectiveError
from lockstitch.hvd.asynchronous import broadcast_async_
from lockstitch.hvd.job import current_session
from lockstitch.hvd.process_sets import ProcessSet, global_process_set, id_of
from lockstitch.hvd.synchronous import broadcast_
from lockstitch.imports import loads
from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

_REFUSED: Final = -1
"""What stands for the size of an object that cannot be pickled: nobody shall wait for it."""


@in_plain_modes
def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]] | Iterable[torch.Tensor],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's values of a `state_dict()`, of `named_parameters()` or of tensors,
    in place. All ranks must give the same names and shapes, in any order if there are names.

    `root_rank`: a global rank, also in a `process_set`. None is passed over. Raises
    `ValueError` for what is no tensor, and what `hvd.broadcast` raises."""
    under_way = [
        broadcast_async_(tensor, root_rank, name and f"parameters.{name}", process_set)
        for name, tensor in _named(params)
        if tensor is not None
    ]
    for operation in under_way:
        operation.wait()


def _named(params: Any) -> list[tuple[str | None, torch.Tensor | None]]:
    if hasattr(params, "items"):
        pairs = sorted(params.items())
    elif isinstance(params, torch.Tensor | str | torch.nn.Module) or not hasattr(
        params, "__iter__"
    ):
        raise ValueError(
            "params must be a state_dict or an iterable, such as model.state_dict() or "
            f"model.named_parameters(), not a {type(params)}"
        )
    else:
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    for name, value in pairs:
        if value is not None and not isinstance(value, torch.Tensor):
            raise ValueError(
                f"parameter {name!r} is no tensor but a {type(value).__name__}; "
                "broadcast_object sends anything"
            )
    return pairs


@in_plain_modes
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001 - programs pass it; not needed here
) -> None:
    """Gives all ranks the root's optimizer state and options. Ranks may have no state yet, as when
    only the root has loaded a checkpoint; their parameters without a gradient get one of zeros.

    `root_rank`: a global rank. Raises `ValueError` for LBFGS, `TypeError` for what is no optimizer,
    and what `hvd.broadcast_object` does.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer is the optimizer itself, not {type(optimizer).__name__}; its state_dict() "
            "is asked for here"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast: it is no plain dictionary")
    if not optimizer.state:
        _fill_gradients(optimizer)
    is_root = current_session().rank == root_rank
    # The tensors travel as tensors; the rest says where they belong.
    tensors: list[torch.Tensor] = []
    skeleton = _without_tensors(optimizer.state_dict(), tensors) if is_root else None
    tensors = [tensor.cpu() for tensor in tensors]  # ranks that have none yet know no device
    kinds = [(tensor.shape, tensor.dtype) for tensor in tensors]
    skeleton, kinds = broadcast_object((skeleton, kinds), root_rank, "optimizer_state")
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
    under_way = [
        broadcast_async_(tensor, root_rank, f"optimizer_state.{number}")
        for number, tensor in enumerate(tensors)
    ]
    for operation in under_way:
        operation.wait()
    if not is_root:
        optimizer.load_state_dict(_with_tensors(skeleton, tensors))


def _fill_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Programs of the original find gradients after the broadcast: it makes the state by a step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class _TensorPosition:
    """Stands for a tensor, which is found in a list, by its number there."""

    def __init__(self, number: int) -> None:
        self.number = number


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns the value with positions instead of tensors, which are added to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TensorPosition(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(each, tensors) for each in value)
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns the value with its tensors, as it was before `_without_tensors`."""
    if isinstance(value, _TensorPosition):
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(each, tensors) for each in value)
    return value


@in_plain_modes
def broadcast_object(
    obj: T,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """The root's object, on all ranks: itself there, copies elsewhere. Anything that cloudpickle
    takes; what the other ranks give is not looked at. `root_rank`: a global rank. Raises what
    `hvd.broadcast` does; where the object cannot be pickled, what cloudpickle raises on the root,
    and `HorovodInternalError` on the other ranks."""
    name = name or "object"
    if current_session().rank == root_rank:
        try:
            content = _pickled(obj)
        except Exception:
            broadcast_(torch.tensor([_REFUSED]), root_rank, f"{name}.size", process_set)
            raise
        broadcast_(torch.tensor([len(content)]), root_rank, f"{name}.size", process_set)
        broadcast_(content, root_rank, f"{name}.content", process_set)
        return obj
    size = broadcast_(torch.zeros(1, dtype=torch.int64), root_rank, f"{name}.size", process_set)
    if int(size) == _REFUSED:
        raise _not_pickled(name, [root_rank])
    content = torch.empty(int(size), dtype=torch.uint8)
    broadcast_(content, root_rank, f"{name}.content", process_set)
    received: T = _unpickled(content)
    return received


@in_plain_modes
def allgather_object(
    obj: T, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[T]:
    """The objects of all ranks, in the order of ranks: anything that cloudpickle takes. Raises what
    `hvd.allgather` does; where an object cannot be pickled, what cloudpickle raises on its rank,
    and `HorovodInternalError` on the others."""
    session, name = current_session(), name or "object"
    failure: Exception | None = None
    try:
        mine = _pickled(obj)
    except Exception as error:  # noqa: BLE001 - raised below, when the others have heard of it
        failure, mine = error, torch.empty(0, dtype=torch.uint8)
    handle = session.allgather(
        mine, name=f"allgather.{name}.content", process_set=id_of(process_set)
    )
    contents = torch.split(session.wait(handle), list(handle.rows[0]))
    if failure is not None:
        raise failure
    ranks = process_set.ranks
    missing = [rank for rank, content in zip(ranks, contents, strict=True) if not len(content)]
    if missing:
        raise _not_pickled(name, missing)
    return [_unpickled(content) for content in contents]


def _not_pickled(name: str, ranks: list[int]) -> CollectiveError:
    return CollectiveError(
        f"there is nothing to read of {name!r}: it cannot be pickled on ranks {ranks}, whose own "
        "errors say why"
    )


def _pickled(value: object) -> torch.Tensor:
    file = io.BytesIO()
    cloudpickle.dump(value, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _unpickled(content: torch.Tensor) -> Any:
    return loads(content.numpy().tobytes())
