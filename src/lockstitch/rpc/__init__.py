"""Calls to functions on other workers, and references to their results.

    api.py                rpc_sync, rpc_async, remote, shutdown, get_worker_info: what programs call
    lifecycle.py          init_rpc
    startup.py            building a worker: it listens, finds the others, gets its services
    joining.py            how a worker joins its group: static, or dynamic
    admission.py          being let into a group that workers join and leave
    workers.py            who is in the group, waiting for one, hearing of changes
    membership.py         how a worker belongs to its group
    dynamic_membership.py the same where workers join and leave: carries out membership_protocol
    dynamic_directory.py  who is in such a group, and how to reach them
    announcer.py          tells callbacks of changes, in order
    leaving.py            ending a worker: together with the others, alone, or at once
    quiescence.py         when all may go: nothing is under way anywhere
    barriers.py           who has come to a barrier, and what each brought (no messages)
    tree.py               the tree along which the workers of a barrier talk
    groups.py             gathering by calls: _all_gather, _barrier, _wait_all_workers
    waiting.py            wait_all, which Ctrl-C can end
    options.py            what init_rpc can be told
    device_maps.py        what it is told of devices, checked by all
    backend_registry.py   backends by name
    functions.py          async_execution
    profiling.py          calls as ranges of a profiler
    opentelemetry.py      calls as spans of OpenTelemetry, imported only by programs that want it
    worker_groups/        many workers as one; what generators on other workers yield
    constants.py          defaults

For programs written for `torch.distributed.rpc`, under its names: agents.py (the agent as a view of
a worker), compat.py (underscore names), internal.py (serialize and deserialize), rref_proxy.py, and
_testing/ (the backend that loses and delays messages).
"""

import sys
from datetime import timedelta as timedelta  # programs of ProcessGroup days say rpc.timedelta
from typing import TYPE_CHECKING

from lockstitch.ids import WorkerInfo
from lockstitch.observe.wait_reports import listen
from lockstitch.rpc import (
    api,
    backend_registry,
    constants,
    functions,
    internal,
    options,
    rref_proxy,
)
from lockstitch.rpc.agents import RpcAgent, TensorPipeAgent
from lockstitch.rpc.announcer import MembershipEvent
from lockstitch.rpc.api import (
    _delete_all_user_and_unforked_owner_rrefs,
    _get_current_rpc_agent,
    _get_debug_info,
    _is_current_rpc_agent_set,
    _reset_current_rpc_agent,
    _rref_context_get_debug_info,
    _set_and_start_rpc_agent,
    _set_rpc_timeout,
    enable_gil_profiling,
    get_rpc_timeout,
    get_worker_info,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
    wait_all,
)
from lockstitch.rpc.backend_registry import BackendType
from lockstitch.rpc.compat import (
    AllGatherStates,
    _is_tensorpipe_available,
    is_available,
    why_not_here,
)
from lockstitch.rpc.constants import (
    _DEFAULT_INIT_METHOD,
    _DEFAULT_NUM_WORKER_THREADS,
    _DEFAULT_RPC_TIMEOUT_SEC,
    _UNSET_RPC_TIMEOUT,
)
from lockstitch.rpc.lifecycle import _init_rpc_backend, init_rpc
from lockstitch.rpc.options import (
    ProcessGroupRpcBackendOptions,
    RpcBackendOptions,
    TensorPipeRpcBackendOptions,
)
from lockstitch.rpc.worker_groups.future import GroupFuture
from lockstitch.rpc.worker_groups.group import Group, group
from lockstitch.rpc.worker_groups.merging import GroupStream
from lockstitch.rpc.worker_groups.references import RRefGroup
from lockstitch.rpc.worker_groups.streams import Stream, stream
from lockstitch.rpc.workers import (
    add_membership_callback,
    get_worker_infos,
    invitation,
    wait_for_worker,
)
from lockstitch.rref.rref import RRef
from lockstitch.runtime.carried_modes import carry_modes
from lockstitch.runtime.pending import Future
from lockstitch.trust.registry import Registry, register
from lockstitch.trust.tls import TlsFiles

listen()

PyRRef = RRef

__all__ = [
    "init_rpc",
    "shutdown",
    "rpc_sync",
    "rpc_async",
    "remote",
    "RRef",
    "PyRRef",
    "Future",
    "wait_all",
    "carry_modes",
    "group",
    "Group",
    "GroupFuture",
    "RRefGroup",
    "stream",
    "Stream",
    "GroupStream",
    "get_worker_info",
    "get_worker_infos",
    "wait_for_worker",
    "add_membership_callback",
    "MembershipEvent",
    "invitation",
    "WorkerInfo",
    "get_rpc_timeout",
    "register",
    "Registry",
    "TlsFiles",
    "functions",
    "BackendType",
    "RpcBackendOptions",
    "TensorPipeRpcBackendOptions",
    "ProcessGroupRpcBackendOptions",
    "RpcAgent",
    "TensorPipeAgent",
    "AllGatherStates",
    "is_available",
    "enable_gil_profiling",
    "api",
    "backend_registry",
    "constants",
    "internal",
    "options",
    "rref_proxy",
    "_DEFAULT_INIT_METHOD",
    "_DEFAULT_NUM_WORKER_THREADS",
    "_DEFAULT_RPC_TIMEOUT_SEC",
    "_UNSET_RPC_TIMEOUT",
    "_delete_all_user_and_unforked_owner_rrefs",
    "_get_current_rpc_agent",
    "_get_debug_info",
    "_init_rpc_backend",
    "_is_current_rpc_agent_set",
    "_is_tensorpipe_available",
    "_reset_current_rpc_agent",
    "_rref_context_get_debug_info",
    "_set_and_start_rpc_agent",
    "_set_rpc_timeout",
]


if not TYPE_CHECKING:  # else a type checker would find any name here

    def __getattr__(name: str) -> object:
        """Tells whoever looks for a name of `torch.distributed.rpc` that is not here what to do."""
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{why_not_here(name)}",
            name=name,
            obj=sys.modules[__name__],
        )
