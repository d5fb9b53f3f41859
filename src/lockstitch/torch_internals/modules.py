"""What is private to torch of modules: their tables, replicas of them, batch normalisation."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.probing import Cost, Names, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.modules.batchnorm import _BatchNorm

    Table: TypeAlias = dict[str, Any]


def _small() -> nn.Module:
    module = nn.Module()
    module.child = nn.Module()
    module.weight = nn.Parameter(torch.zeros(1))
    module.register_buffer("kept", torch.zeros(1))
    return module


def _holds(name: str) -> Callable[[Any], bool]:
    """Whether the table is the one in which a module looks for what has this name."""

    def probe(table_of: Callable[[nn.Module], Table]) -> bool:
        module = _small()
        table = table_of(module)
        before = table[name] is getattr(module, name)
        table[name] = None
        return before and list(table) == [name] and getattr(module, name) is None

    return probe


_tables = Names("modules on slots and in checkpoints", within=plain_modes)
parameters_of: Callable[[nn.Module], Table] = _tables.take(
    "Module._parameters",
    "be the table of the parameters of a module",
    _holds("weight"),
    reader=attrgetter("_parameters"),
)
buffers_of: Callable[[nn.Module], Table] = _tables.take(
    "Module._buffers",
    "be the table of the buffers of a module",
    _holds("kept"),
    reader=attrgetter("_buffers"),
)
children_of: Callable[[nn.Module], Table] = _tables.take(
    "Module._modules",
    "be the table of the submodules of a module",
    _holds("child"),
    reader=attrgetter("_modules"),
)
PARAMETERS, BUFFERS, CHILDREN = TABLES = ("_parameters", "_buffers", "_modules")
"""The attributes that are these tables."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
FORWARD_HOOKS = _HOOKS[0]
_all_hooks = attrgetter(*_HOOKS)


def _has_hooks(module: nn.Module) -> bool:
    return any(_all_hooks(module))


def _notices_hooks(has_hooks: Callable[[nn.Module], bool]) -> bool:
    seen = []
    for register in (
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ):
        module = nn.Module()
        seen.append(has_hooks(module))
        getattr(module, register)(_has_hooks)
        seen.append(has_hooks(module))
    return seen == [False, True] * 4


_automatic = Names("slots that DataParallel chooses by itself", within=plain_modes)
has_hooks: Callable[[nn.Module], bool] = _automatic.take(
    "Module._forward_hooks, _forward_pre_hooks, _backward_hooks and _backward_pre_hooks",
    "hold what was registered by Module.register_forward_hook and the like",
    _notices_hooks,
    reader=_has_hooks,
)


def _is_above_every_norm(norm: type) -> bool:
    with_statistics = (nn.BatchNorm1d, nn.BatchNorm3d, nn.InstanceNorm2d, nn.SyncBatchNorm)
    return all(issubclass(each, norm) for each in with_statistics) and not issubclass(
        nn.LayerNorm, norm
    )


NormBase: type[nn.Module] = _automatic.take(
    "torch.nn.modules.batchnorm._NormBase",
    "be what all modules are that keep statistics of batches",
    _is_above_every_norm,
)


def _asks_for_dimensions(norm: type[nn.Module]) -> bool:
    """Whether a class derived from it is asked whether it takes an input."""
    asked: list[torch.Tensor] = []

    class Asked(norm):  # type: ignore[valid-type, misc]
        def _check_input_dim(self, input: torch.Tensor) -> None:
            asked.append(input)

    given = torch.tensor([[1.0], [3.0]])
    result = Asked(1, affine=False)(given)
    return result.flatten().round().tolist() == [-1.0, 1.0] and asked == [given]


_normalisation = Names("hvd.SyncBatchNorm", within=plain_modes)
if not TYPE_CHECKING:
    _BatchNorm: Any = _normalisation.take(
        "torch.nn.modules.batchnorm._BatchNorm",
        "normalise a batch, and ask _check_input_dim whether it takes it",
        _asks_for_dimensions,
        otherwise=nn.BatchNorm1d,
        cost=Cost.THOROUGH,
    )


class BatchNorm(_BatchNorm):
    """Batch normalisation of inputs with any number of dimensions from two on."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    def check_dimensions(self, input: torch.Tensor) -> None:
        """Raises `ValueError` below two dimensions."""
        self._check_input_dim(input)


def _shallow_copy(module: nn.Module) -> nn.Module:
    copy: nn.Module = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    return copy


def _is_shallow(copy_of: Callable[[nn.Module], nn.Module]) -> bool:
    module = _small()
    copy = copy_of(module)
    tables = [table(copy) for table in (parameters_of, buffers_of, children_of)]
    is_apart = tables[1] is not buffers_of(module) and tables[2] is not children_of(module)
    return type(copy) is nn.Module and is_apart and list(map(len, tables)) == [0, 1, 1]


def _mark_as_parameter(tensor: torch.Tensor) -> None:
    tensor._is_param = True


def _passes_for_one(mark: Callable[[torch.Tensor], object]) -> bool:
    tensor = torch.zeros(1) + 0
    if isinstance(tensor, nn.Parameter):
        return False
    mark(tensor)
    return isinstance(tensor, nn.Parameter)


def _set_former_parameters(copy: nn.Module, former: dict[str, torch.Tensor]) -> None:
    copy._former_parameters = former  # type: ignore[assignment]


def _is_read_by_torch(set_former: Callable[[nn.Module, dict[str, torch.Tensor]], object]) -> bool:
    replica, tensor = _shallow_copy(nn.Module()), torch.zeros(1)
    set_former(replica, {"weight": tensor})
    read = resolve("torch.nn.parallel.DistributedDataParallel._get_parameters")
    return [id(each) for each in read(None, replica)] == [id(tensor)]


def _raises_again(wrapper: Any) -> bool:
    try:
        raise KeyError("own")
    except KeyError:
        kept = wrapper(where="there")
    try:
        kept.reraise()
    except KeyError as error:
        return "own" in str(error) and "there" in str(error)
    return False


def _is_for_devices(stream_for: Callable[[Any], Any]) -> bool:
    try:
        stream_for(None)
    except AttributeError:  # it asks for the type of the device
        return stream_for(torch.device("cpu")) is None
    return False


_replicas = Names("replicas of modules", within=plain_modes)
shallow_copy: Callable[[nn.Module], nn.Module] = _replicas.take(
    "Module._replicate_for_data_parallel",
    "return a copy without parameters, with tables of its own that refer to the same",
    _is_shallow,
    reader=_shallow_copy,
)
mark_as_parameter: Callable[[torch.Tensor], None] = _replicas.take(
    "Tensor._is_param",
    "make a tensor on the graph pass for a Parameter",
    _passes_for_one,
    reader=_mark_as_parameter,
)
set_former_parameters: Callable[[nn.Module, dict[str, torch.Tensor]], None] = _replicas.take(
    "Module._former_parameters, as DistributedDataParallel._get_parameters reads it",
    "be what stands for the parameters of a replica",
    _is_read_by_torch,
    reader=_set_former_parameters,
)
ExceptionWrapper: Any = _replicas.take(
    "torch._utils.ExceptionWrapper",
    "raise in this thread what was raised in another",
    _raises_again,
    cost=Cost.THOROUGH,
)
get_stream: Callable[[torch.device], Any] = _replicas.take(
    "torch.nn.parallel._functions._get_stream",
    "return None for the CPU, and for an accelerator a stream that is used for copies",
    _is_for_devices,
)


def _knows_types(nodes: Any) -> bool:
    """Whether it tells for a type how its instances are taken apart and made again."""
    node = nodes[dict]
    children, context = node.flatten_fn({"a": 1, "b": 2})
    keyed, _ = node.flatten_with_keys_fn({"a": 1, "b": 2})
    made = node.unflatten_fn([3, 4], context)
    return list(children) == [1, 2] and made == {"a": 3, "b": 4} and str(keyed[0][0]) == "['a']"


_containers = Names("containers that are registered with pytree, in DataParallel")
CONTAINERS: dict[type, Any] = _containers.take(
    "torch.utils._pytree.SUPPORTED_NODES",
    "tell how instances of a type are taken apart",
    _knows_types,
    otherwise={},
)

PRIVATES = (
    *_tables.finish(),
    *_automatic.finish(),
    *_normalisation.finish(),
    *_replicas.finish(),
    *_containers.finish(),
)
