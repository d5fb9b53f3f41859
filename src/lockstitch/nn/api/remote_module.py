"""A module that lives on another worker: its forward runs there, gradients find their way there.

A `RemoteModule` holds a reference to the module and calls it; in an autograd context those calls
are stitched as all calls are. Sent to a third worker it becomes another handle of the same module.
All other methods of `torch.nn.Module` are refused: what they would do here is not what they would
do there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import nn
from typing_extensions import Self

from lockstitch.devices.kinds import HOST, is_host
from lockstitch.nn.parallel.containers import unpack_container
from lockstitch.rpc import RRef, get_worker_info, remote, rpc_async, rpc_sync
from lockstitch.runtime.worker import current_worker, has_current_worker
from lockstitch.torch_internals.distributed import RemoteDevice
from lockstitch.torch_internals.modules import FORWARD_HOOKS
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.futures import Future

__all__ = ["RemoteModule"]

M = TypeVar("M", bound=nn.Module)

_REMOTE_MODULE_PICKLED_ATTRIBUTES = (
    "on",
    "device",
    "is_device_map_set",
    "is_scriptable",
    "generated_methods",
    "module_rref",
)


# ---------------------------------------------------------------- on the module's worker


@needed
def _create_module(
    module_cls: Callable[..., nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: str,
) -> nn.Module:
    module = module_cls(*args, **kwargs)
    if not isinstance(module, nn.Module):
        raise ValueError(
            "Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, "
            f"but it returns an instance of {type(module)}."
        )
    return module.to(device)


@needed
def _remote_forward(
    module_rref: RRef[nn.Module],
    device: str,
    is_device_map_set: bool,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Inputs go to the module's device, if that is an accelerator; outputs come back by way of the
    host, unless a device map says where they shall be."""
    module = _checked(module_rref, "__call__")
    place = torch.device(device)
    if is_host(place):
        return module(*args, **kwargs)
    output = module(*_moved(args, place), **_moved(kwargs, place))
    return output if is_device_map_set else _moved(output, HOST)


def _forward_as_called(
    _module_rref: RRef[nn.Module], _device: str, _is_set: bool, /, *args: Any, **kwargs: Any
) -> Any:
    return "a remote module's forward", args, kwargs


_remote_forward.as_called = _forward_as_called  # type: ignore[attr-defined]


def _moved(thing: Any, device: torch.device) -> Any:
    if isinstance(thing, torch.Tensor):
        return thing.to(device)
    opened = unpack_container(thing)
    if opened is None:
        return thing
    return opened.rebuild([_moved(child, device) for child in opened.children])


@needed
def _param_rrefs(module_rref: RRef[nn.Module], recurse: bool) -> list[RRef[nn.Parameter]]:
    module = _checked(module_rref, "parameters")
    return [RRef(parameter) for parameter in module.parameters(recurse)]


@needed
def _set_training(module_rref: RRef[nn.Module], mode: bool) -> None:
    _checked(module_rref, "train").train(mode)


def _checked(module_rref: RRef[nn.Module], method: str) -> nn.Module:
    """The module, whose method may be called by peers."""
    module = module_rref.local_value()
    allowed = current_worker().agent.allowed
    if allowed is not None:
        allowed.check_method(module, method)
    return module


# ---------------------------------------------------------------- here


def forward_async(
    module_rref: RRef[nn.Module], device: str, is_device_map_set: bool, /, *args: Any, **kwargs: Any
) -> Future[Any]:
    """Starts the module's forward where it lives."""
    call = (module_rref, device, is_device_map_set, *args)
    return rpc_async(module_rref.owner(), _remote_forward, call, kwargs)


def forward(
    module_rref: RRef[nn.Module], device: str, is_device_map_set: bool, /, *args: Any, **kwargs: Any
) -> Any:
    """Runs the module's forward where it lives."""
    call = (module_rref, device, is_device_map_set, *args)
    return rpc_sync(module_rref.owner(), _remote_forward, call, kwargs)


_REFUSED = (
    "register_buffer register_parameter add_module register_module apply cuda ipu xpu cpu type "
    "float double half bfloat16 to register_backward_hook register_forward_pre_hook "
    "register_forward_hook named_parameters buffers named_buffers children named_children modules "
    "named_modules requires_grad_ zero_grad share_memory extra_repr state_dict load_state_dict"
).split()


def _refuse(name: str) -> Callable[..., NoReturn]:
    def method(self: nn.Module, *args: Any, **kwargs: Any) -> NoReturn:
        del args, kwargs
        raise ValueError(
            f"Method ``{name}`` not supported for RemoteModule: the module is on "
            f"{vars(self).get('on')!r}. Call a function there that takes get_module_rref(), and "
            f"uses {name} of its local_value()"
        )

    method.__name__ = name
    method.__doc__ = "Refused: the module is elsewhere."
    return method


def _arguments(args: object) -> tuple[Any, ...]:
    if args is not None and not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args must be a tuple or list of arguments, not {args!r}: a single argument needs a "
            "comma, as in args=(x,)"
        )
    return tuple(args or ())


def _refusing(cls: type[M]) -> type[M]:
    for name in _REFUSED:
        setattr(cls, name, _refuse(name))
    return cls


@_refusing
class _RemoteModule(nn.Module):
    """`RemoteModule` with the original's further argument, which is refused."""

    on: str | int
    """The worker that has the module: its name, or its rank if that was given."""
    device: str
    is_device_map_set: bool
    is_scriptable: bool
    generated_methods: tuple[Callable[..., Any], ...]
    module_rref: RRef[nn.Module]
    forward: Callable[..., Any]
    """Runs the module's forward on its worker and returns what it returns."""
    forward_async: Callable[..., Future[Any]]
    """As `forward`, but returns a `torch.futures.Future` of it at once."""

    def __init__(
        self,
        remote_device: str,
        module_cls: Callable[..., nn.Module],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        _module_interface_cls: Any = None,
    ) -> None:
        super().__init__()
        _refuse_script(_module_interface_cls)
        if isinstance(module_cls, nn.Module) or not callable(module_cls):
            raise TypeError(
                "module_cls is a class of modules, or a function, which makes the module where it "
                f"is to live, as in RemoteModule({remote_device!r}, nn.Linear, args=(3, 1)), not "
                f"{module_cls!r}"
            )
        self._settle(remote_device)
        given = (module_cls, _arguments(args), dict(kwargs or {}), self.device)
        self.module_rref = remote(self.on, _create_module, given)
        self._install_methods()

    @classmethod
    def init_from_module_rref(
        cls, remote_device: str, module_rref: RRef[nn.Module], _module_interface_cls: Any = None
    ) -> Self:
        """Another handle of the module behind `module_rref`. `remote_device` as in the constructor;
        it says on which device the module's inputs belong, and moves nothing."""
        _refuse_script(_module_interface_cls)
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        new._settle(remote_device)
        new.module_rref = module_rref
        new._install_methods()
        return new

    def _settle(self, remote_device: str) -> None:
        """Reads the place, in the order in which attributes cross the wire."""
        if not has_current_worker():
            raise AssertionError(
                "RemoteModule only works in RPC. RPC has not been initialized: call init_rpc on "
                f"this worker before it makes a module on {remote_device!r}"
            )
        place = RemoteDevice(remote_device)
        name, rank = place.worker_name(), place.rank()
        if name is not None:
            self.on = name
        else:
            self.on = get_worker_info().name if rank is None else rank
        self.device = str(place.device())
        self.is_device_map_set = False
        self.is_scriptable = False
        self.generated_methods = (forward_async, forward)

    def _install_methods(self) -> None:
        """Sets the module's methods as attributes that know the reference but not this object: no
        cycle keeps it alive."""
        for method in self.generated_methods:
            bound = partial(method, self.module_rref, self.device, self.is_device_map_set)
            vars(self)[method.__name__] = bound

    def remote_parameters(self, recurse: bool = True) -> list[RRef[nn.Parameter]]:
        """References to the module's parameters, as `DistributedOptimizer` takes them; with
        `recurse=False` only to those that are not its submodules'."""
        return rpc_sync(self.module_rref.owner(), _param_rrefs, (self.module_rref, recurse))

    def get_module_rref(self) -> RRef[nn.Module]:
        """The reference to the module."""
        return self.module_rref

    def train(self, mode: bool = True) -> Self:
        """Sets the module's mode on its worker."""
        rpc_sync(self.module_rref.owner(), _set_training, (self.module_rref, mode))
        return self

    def eval(self) -> Self:
        """Does what `train(False)` does."""
        return self.train(False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, with what hooks there are on a handle that was not received."""
        if FORWARD_HOOKS in vars(self):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(on={self.on!r}, device={self.device!r})"

    # ------------------------------------------------------------ pickling

    def __rpc_reduce__(self) -> tuple[Any, ...]:
        """Lets the handle cross to another worker: as a handle of the same module."""
        state = [vars(self)[name] for name in _REMOTE_MODULE_PICKLED_ATTRIBUTES]
        return _receive, (type(self), *state)

    def __getstate__(self) -> NoReturn:
        raise RuntimeError(
            "Cannot pickle RemoteModule in python pickler. RemoteModule can only be pickled when "
            "using RPC"
        )

    def __setstate__(self, state: Any) -> NoReturn:
        raise RuntimeError(
            "Cannot unpickle RemoteModule in python pickler. RemoteModule can only be unpickled "
            "when using RPC"
        )

    # ------------------------------------------------------------ refused

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Refused: they are elsewhere."""
        del recurse
        raise ValueError(
            "Method ``parameters`` not supported for RemoteModule. "
            "Please use ``remote_parameters`` instead."
        )


class RemoteModule(_RemoteModule):
    """A module made and kept on another worker: `RemoteModule("worker1/cpu", nn.Linear, (20, 30))`.

    `remote_device`: `"<worker>/<device>"` or `"rank:<rank>/<device>"`; the device may be left away
    and is then the CPU, as may the worker, which is then this one. `module_cls(*args, **kwargs)` is
    called there and must return a module; what it raises is raised by the first use. `forward` and
    `forward_async` take what the module's forward takes.

    Needs a worker (`AssertionError`). Raises `TypeError` for a `module_cls` that cannot be called
    and for `args` that are no sequence, `ValueError` or what `torch.device` raises for a place
    that cannot be read, `RpcError` for an unknown worker. May be an attribute of a local module,
    whose own parameters it does not change; `parameters()` and most other methods raise
    `ValueError`. Can be sent to other workers by calls, not pickled otherwise (`RuntimeError`).
    """

    def __init__(
        self,
        remote_device: str,
        module_cls: Callable[..., nn.Module],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(remote_device, module_cls, args, kwargs)


def _receive(cls: type[_RemoteModule], *state: Any) -> _RemoteModule:
    """A handle on the worker to which one was sent."""
    new = cls.__new__(cls)
    vars(new).update(zip(_REMOTE_MODULE_PICKLED_ATTRIBUTES, state, strict=True))
    new._install_methods()
    return new


def _refuse_script(interface: object) -> None:
    if interface is not None:
        raise NotImplementedError(
            "RemoteModule has no TorchScript interface here: leave _module_interface_cls away"
        )
