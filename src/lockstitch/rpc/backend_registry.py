"""Backends by name: how to make their options, and how to start a worker on them.

The incumbent rebuilds an `Enum` at each registration, so that members handed out earlier stop being
members. Here `BackendType` is one class that grows; it is used like an `Enum`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lockstitch.rpc.constants import DEFAULT_INIT_METHOD, DEFAULT_RPC_TIMEOUT_SEC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.rpc.options import RpcBackendOptions


class BackendValue(NamedTuple):
    """The two functions that a backend consists of."""

    construct_rpc_backend_options_handler: Callable[..., RpcBackendOptions]
    init_backend_handler: Callable[..., Any]


class _Members(type):
    """Makes a class a mapping of its members by name, as an `Enum` is one."""

    __members__: dict[str, BackendType]

    def __iter__(cls) -> Iterator[BackendType]:
        return iter(cls.__members__.values())

    def __len__(cls) -> int:
        return len(cls.__members__)

    def __getitem__(cls, name: str) -> BackendType:
        return cls.__members__[name]


class BackendType(metaclass=_Members):
    """The registered backends: `BackendType.TENSORPIPE`, the default, and what
    `register_backend` adds. `PROCESS_GROUP`, the default of old versions of PyTorch, is another
    name of ours."""

    __members__: ClassVar[dict[str, BackendType]] = {}
    TENSORPIPE: ClassVar[BackendType]
    PROCESS_GROUP: ClassVar[BackendType]

    def __init__(self, name: str, value: BackendValue) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"BackendType.{self.name}"


def backend_registered(backend_name: str) -> bool:
    """Whether a backend of that name is registered."""
    return backend_name in BackendType.__members__


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., RpcBackendOptions],
    init_backend_handler: Callable[..., Any],
) -> BackendType:
    """Registers a backend and returns its `BackendType`.

    `construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)` makes its options;
    `init_backend_handler(store=, name=, rank=, world_size=, rpc_backend_options=)` starts a worker
    and returns its agent. Raises `RuntimeError` if the name is taken.
    """
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    value = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    member = BackendType(backend_name, value)
    BackendType.__members__[backend_name] = member
    setattr(BackendType, backend_name, member)
    return member


def construct_rpc_backend_options(
    backend: BackendType,
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
    init_method: str = DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> RpcBackendOptions:
    """Makes the options of `backend`, with `kwargs` for those that only it has."""
    return backend.value.construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)


def init_backend(backend: BackendType, *args: Any, **kwargs: Any) -> Any:
    """Starts a worker on `backend`; returns its agent."""
    return backend.value.init_backend_handler(*args, **kwargs)


def infer_backend(options: RpcBackendOptions) -> BackendType:
    """Returns the backend that makes options like these; of several, the latest registered.

    Raises `TypeError` where there is none.
    """
    for backend in reversed(list(BackendType)):
        if isinstance(options, type(construct_rpc_backend_options(backend))):
            return backend
    raise TypeError(f"Could not infer backend for options {options}")
