"""`init_rpc`: checks what it is given, finds the others, and gives the process its worker."""

from __future__ import annotations

import os
import warnings
from numbers import Integral
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import Store

from lockstitch.attach.presence import PRESENCE
from lockstitch.inquiry import tell_of_crashes
from lockstitch.modes import in_plain_modes
from lockstitch.observe.wait_reports import listen
from lockstitch.rendezvous import open_store
from lockstitch.rendezvous.joining import outside
from lockstitch.rendezvous.launchers import rank_alone
from lockstitch.rendezvous.reaching import say
from lockstitch.rpc import api
from lockstitch.rpc.admission import Invitation
from lockstitch.rpc.backend_registry import (
    BackendType,
    construct_rpc_backend_options,
    infer_backend,
    init_backend,
)
from lockstitch.rpc.leaving import leave_at_termination
from lockstitch.rpc.options import RpcBackendOptions, TensorPipeRpcBackendOptions
from lockstitch.rpc.startup import check_address, join_seconds
from lockstitch.rpc.waiting import keep_word_of_torch
from lockstitch.rpc.workers import begin_callbacks
from lockstitch.runtime.worker import current_worker, has_current_worker
from lockstitch.termination import TERMINATION

if TYPE_CHECKING:
    from lockstitch.rpc.agents import RpcAgent

_RANK = "{rank}"
_ALREADY = "RPC is already initialized; a process has one worker at a time, until shutdown"


@in_plain_modes
def init_rpc(
    name: str,
    backend: BackendType | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Makes this process a worker: from now on it calls others, and others call it.

    `name`: unique in the group; letters, digits, `_`, `:` and `-`, shorter than 128; `{rank}` in it
    stands for the rank. `rank`: unique, from 0; with `env://` it is what the launcher says, where
    it is not given: torchrun, `lockstitch run`, Horovod, Slurm, Open MPI and MPICH, which also tell
    where to meet, as far as they know it. `world_size`: how many
    ranks the group has; the call returns when all of them are there. None or 0 makes a dynamic
    group, which ranks join and leave at any time; a rank that is not given is then the lowest that
    is free. An `init_method` from `invitation()` joins through that member, as does what stands in
    LOCKSTITCH_INVITATION, with `env://`. `backend`,
    `rpc_backend_options`: see `TensorPipeRpcBackendOptions`; each is derived from the other where
    only one is given.

    Raises `TypeError` for arguments of the wrong kind; `ValueError` where the rendezvous lacks rank
    or address; `RuntimeError` when this process has a worker already, when a name or rank is taken,
    when ranks do not come in time, and when static and dynamic members meet.
    """
    listen()
    PRESENCE.show()
    tell_of_crashes()
    _check_types(backend, rpc_backend_options)
    if api._is_current_rpc_agent_set():
        raise RuntimeError(_ALREADY)
    if backend is None and rpc_backend_options is not None:
        backend = _infer_backend(rpc_backend_options)
    backend = backend or BackendType.TENSORPIPE
    options = rpc_backend_options or construct_rpc_backend_options(backend)
    _check_rank(rank)
    init_method = options.init_method
    if rank < 0 and init_method.startswith("env://"):
        known = rank_alone(os.environ)
        rank = rank if known is None else known
    name = _with_rank(name, rank)
    if world_size and 0 < world_size <= rank:  # else it would first look for the others
        raise ValueError(outside(rank, world_size))
    if world_size and options.init_method.startswith("env://"):
        _tell_of_fewer_processes(world_size)
    store: Store | Invitation | None = Invitation.read(init_method, os.environ)
    if store is None:
        if isinstance(options, TensorPipeRpcBackendOptions):
            check_address(options)
        store = open_store(init_method, rank, world_size, join_seconds(options))
    _begin(backend, store, name, rank, world_size, options)


def _with_rank(name: str, rank: int) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a worker must be a text, not {name!r}")
    if _RANK not in name:
        return name
    if rank < 0:
        raise ValueError(
            f"the name {name!r} wants a rank, but none is given, and no launcher has said any"
        )
    return name.replace(_RANK, str(rank))


def _infer_backend(options: RpcBackendOptions) -> BackendType:
    """Returns the backend that has such options; warns if it is not the default one."""
    backend = infer_backend(options)
    if backend is not BackendType.TENSORPIPE:
        warnings.warn(
            "RPC was initialized with no explicit backend but with options corresponding to "
            f"{backend}, hence that backend will be used instead of the default "
            f"{BackendType.TENSORPIPE}. To silence this warning pass `backend={backend}` "
            "explicitly.",
            stacklevel=3,
        )
    return backend


def _tell_of_fewer_processes(world_size: int) -> None:
    """Says at once where the launcher has started fewer processes than the group has ranks, not
    when the time is over. Processes of the program's own may have the other ranks."""
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdecimal() and int(started) < world_size:
        say(
            f"init_rpc was given world_size={world_size}, but WORLD_SIZE={started}: the launcher "
            "has started fewer processes; it waits for those that are missing"
        )


def _check_rank(rank: object) -> None:
    if not isinstance(rank, Integral):
        raise TypeError(
            f"rank must be an integer, not {rank!r}: what comes from the environment needs int(...)"
        )


def _init_rpc_backend(
    backend: BackendType | None = None,
    store: Store | None = None,
    name: str | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Like `init_rpc`, with a store that the program has opened."""
    backend = backend or BackendType.TENSORPIPE
    expected: list[tuple[object, Any]] = [
        (backend, BackendType),
        (store, Store),
        (name, str),
        (rank, Integral),
        (world_size, (Integral, type(None))),
        (rpc_backend_options, RpcBackendOptions),
    ]
    for argument, kind in expected:
        if not isinstance(argument, kind):
            raise RuntimeError(
                f"Argument {argument} must be of type {kind} but got type {type(argument)}"
            )
    assert store is not None
    assert name is not None
    assert rpc_backend_options is not None
    if api._is_current_rpc_agent_set():
        raise RuntimeError(_ALREADY)
    seconds = join_seconds(rpc_backend_options)
    store = open_store(store, rank, world_size, seconds)
    _begin(backend, store, name, rank, world_size, rpc_backend_options)


def _check_types(backend: object, options: object) -> None:
    if backend is not None and not isinstance(backend, BackendType):
        raise TypeError(
            "Argument backend must be a member of BackendType, such as "
            f"lockstitch.rpc.BackendType.TENSORPIPE, not {backend!r} of {type(backend).__module__}"
        )
    if options is not None and not isinstance(options, RpcBackendOptions):
        raise TypeError(
            "Argument rpc_backend_options must be an instance of RpcBackendOptions, such as "
            f"lockstitch.rpc.TensorPipeRpcBackendOptions, not a {type(options).__name__} of "
            f"{type(options).__module__}"
        )


def _begin(
    backend: BackendType,
    store: Store | Invitation,
    name: str,
    rank: int,
    world_size: int | None,
    options: RpcBackendOptions,
) -> None:
    agent: RpcAgent = init_backend(
        backend,
        store=store,
        name=name,
        rank=rank,
        world_size=world_size,
        rpc_backend_options=options,
    )
    keep_word_of_torch()
    if leave_at_termination not in TERMINATION.farewells:
        TERMINATION.farewells.append(leave_at_termination)
    TERMINATION.install()
    # Looked up in `api`: where a program brings its own backend, it may put its own starter there.
    api._set_and_start_rpc_agent(agent)
    PRESENCE.renew()
    if has_current_worker():
        begin_callbacks(current_worker())
