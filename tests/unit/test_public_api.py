"""The faces are pinned: their names, that each is documented and typed, and that whoever comes from
`torch.distributed` finds the parameters that they are used to.

A change of these lists is a change that users notice; it has a line in CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
import types
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.autograd as torch_autograd
import torch.distributed.rpc as torch_rpc

import lockstitch.autograd
import lockstitch.nn
import lockstitch.optim
import lockstitch.rpc

if TYPE_CHECKING:
    from collections.abc import Callable

PUBLIC_NAMES = {
    "lockstitch": "__version__ explain_waits replace",
    "lockstitch.rpc": """
        init_rpc shutdown rpc_sync rpc_async remote RRef PyRRef Future wait_all carry_modes
        get_worker_info get_worker_infos wait_for_worker add_membership_callback MembershipEvent
        invitation WorkerInfo get_rpc_timeout functions BackendType RpcBackendOptions
        TensorPipeRpcBackendOptions ProcessGroupRpcBackendOptions RpcAgent TensorPipeAgent
        AllGatherStates is_available enable_gil_profiling register Registry TlsFiles
        group Group GroupFuture RRefGroup stream Stream GroupStream
        api backend_registry constants internal options rref_proxy
    """,
    "lockstitch.autograd": "context backward get_gradients grad DistAutogradContext",
    "lockstitch.checkpoint": """
        register unregister save save_async load names read write CheckpointError
    """,
    "lockstitch.optim": """
        AveragedModel DistributedOptimizer GradScaler clip_grad_norm_ clip_grad_value_
        clip_grads_with_norm_ get_total_norm named_parameters_of parameters_of update_bn
    """,
    "lockstitch.hvd": """
        ccl_built cross_rank cross_size cuda_built ddl_built gloo_built gloo_enabled init
        is_homogeneous is_initialized local_rank local_size mpi_built mpi_enabled
        mpi_threads_supported nccl_built rank rocm_built shutdown size Adasum Average Max
        Min Product Sum HorovodInternalError allgather allreduce allreduce_ alltoall
        broadcast broadcast_ grouped_allgather grouped_allreduce grouped_allreduce_
        grouped_reducescatter reducescatter allgather_async allreduce_async
        allreduce_async_ alltoall_async broadcast_async broadcast_async_
        grouped_allgather_async grouped_allreduce_async grouped_allreduce_async_
        grouped_reducescatter_async reducescatter_async sparse_allreduce_async barrier
        join poll synchronize start_timeline stop_timeline run runner DistributedOptimizer optimizer
        SyncBatchNorm sync_batch_norm
        broadcast_parameters broadcast_optimizer_state
        broadcast_object allgather_object Compression ProcessSet global_process_set
        add_process_set remove_process_set common compression elastic exceptions functions mpi_ops
        process_sets
    """,
    "lockstitch.c10d": "ProcessGroup dump_trace",
    "lockstitch.observe": """
        jobs status calls waits holdups stacks graph trace step explain_waits Job Explanation
        Participant Wait Culprit Holdup Calls Edge FunctionCalls Trace Track ContextGraph Stitch
        JobNotFoundError ContextNotFoundError
    """,
    "lockstitch.nn": """
        DataParallel data_parallel DataParallelCriterion RemoteModule Pipeline split Replicate
        Shard api parallel
    """,
    "lockstitch.nn.parallel": """
        DataParallel data_parallel Replicate Shard comm gather parallel_apply replicate scatter
        scatter_kwargs
    """,
    "lockstitch.hvd.elastic": """
        run run_fn State ObjectState TorchState ElasticSampler HorovodInternalError
        HostsUpdatedInterrupt get_handler_registry set_handler_registry handlers objects running
        sampler state
    """,
    "lockstitch.ray": "ElasticRayExecutor RayExecutor RpcGroup workers log",
    "lockstitch.testing": """
        LocalCluster ProcessCluster Faults Traffic ManualClock assert_same_gradients no_leaks
    """,
}

# Ours first, theirs second.
SAME_PARAMETERS: list[tuple[Callable[..., object], Callable[..., object]]] = [
    (lockstitch.rpc.init_rpc, torch_rpc.init_rpc),
    (lockstitch.rpc.shutdown, torch_rpc.shutdown),
    (lockstitch.rpc.rpc_sync, torch_rpc.rpc_sync),
    (lockstitch.rpc.rpc_async, torch_rpc.rpc_async),
    (lockstitch.rpc.remote, torch_rpc.remote),
    (lockstitch.rpc.get_worker_info, torch_rpc.get_worker_info),
    (lockstitch.rpc.functions.async_execution, torch_rpc.functions.async_execution),
    (lockstitch.rpc.TensorPipeRpcBackendOptions, torch_rpc.TensorPipeRpcBackendOptions),
    (lockstitch.autograd.context, torch_autograd.context),
    (lockstitch.nn.parallel.scatter, torch.nn.parallel.scatter),
    (lockstitch.nn.parallel.gather, torch.nn.parallel.gather),
    (lockstitch.nn.parallel.replicate, torch.nn.parallel.replicate),
    (lockstitch.nn.parallel.parallel_apply, torch.nn.parallel.parallel_apply),
    (lockstitch.nn.parallel.comm.broadcast, torch.nn.parallel.comm.broadcast),
    (lockstitch.nn.parallel.comm.reduce_add, torch.nn.parallel.comm.reduce_add),
    (lockstitch.nn.parallel.comm.scatter, torch.nn.parallel.comm.scatter),
    (lockstitch.nn.parallel.comm.gather, torch.nn.parallel.comm.gather),
]

# What the incumbent's module imports for itself, or leaves behind.
NOT_OFFERED = set(
    """
    Generator RemoteProfilerManager Store dist dist_autograd logger logging
    method_factory new_method numbers os server_process_global_profiler threading timedelta torch
    urlparse warnings
    """.split()
)


def is_ours_to_document(value: object) -> bool:
    return isinstance(value, type | types.FunctionType)


def public_values() -> list[Any]:
    found = []
    for module_name, names in PUBLIC_NAMES.items():
        module = importlib.import_module(module_name)
        for name in names.split():
            value = getattr(module, name, None)
            if is_ours_to_document(value):
                found.append(pytest.param(value, id=f"{module_name}.{name}"))
    return found


def methods_of(cls: type) -> list[types.FunctionType]:
    """What the class itself adds in public; operators and constructors are told by the class."""
    return [
        member
        for name, member in vars(cls).items()
        if isinstance(member, types.FunctionType) and not name.startswith("_")
    ]


@pytest.mark.parametrize("module_name", PUBLIC_NAMES)
def test_public_names_are_the_agreed_ones(module_name: str) -> None:
    module = importlib.import_module(module_name)
    names = [
        name
        for name in getattr(module, "__all__", ())
        if name == "__version__" or not name.startswith("_")
    ]
    assert sorted(names) == sorted(PUBLIC_NAMES[module_name].split())
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("value", public_values())
def test_public_name_has_a_docstring(value: Any) -> None:
    undocumented = [value] if not inspect.getdoc(value) else []
    if isinstance(value, type):
        undocumented += [method for method in methods_of(value) if not inspect.getdoc(method)]
    assert undocumented == []


@pytest.mark.parametrize("value", public_values())
def test_public_name_is_annotated(value: Any) -> None:
    functions = methods_of(value) if isinstance(value, type) else [value]
    missing = [
        f"{function.__qualname__}({parameter.name})"
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    missing += [
        f"{function.__qualname__} -> ?"
        for function in functions
        if inspect.signature(function).return_annotation is inspect.Signature.empty
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [pytest.param(*pair, id=pair[0].__name__) for pair in SAME_PARAMETERS],
)
def test_parameters_of_the_incumbent_are_there_in_its_order(
    ours: Callable[..., object], theirs: Callable[..., object]
) -> None:
    expected = inspect.signature(theirs).parameters
    actual = inspect.signature(ours).parameters
    assert list(actual)[: len(expected)] == list(expected)
    for name, parameter in expected.items():
        assert actual[name].kind == parameter.kind
        assert actual[name].default == parameter.default


def test_backward_takes_what_the_incumbents_takes_and_more() -> None:
    # Theirs is built in and has no signature to compare with.
    assert str(inspect.signature(lockstitch.autograd.backward)).startswith("(context_id")
    parameters = inspect.signature(lockstitch.autograd.backward).parameters
    assert list(parameters) == ["context_id", "roots", "retain_graph", "create_graph", "mode"]
    assert parameters["retain_graph"].default is False
    assert parameters["mode"].default == "smart"


def test_grad_takes_what_that_of_torch_takes() -> None:
    ours = list(inspect.signature(lockstitch.autograd.grad).parameters)
    theirs = list(inspect.signature(torch.autograd.grad).parameters)
    assert ours[:6] == ["context_id", *theirs[:5]]
    assert set(theirs) - set(ours) == {"only_inputs", "is_grads_batched"}


def test_distributed_optimizer_takes_what_the_incumbents_takes() -> None:
    # Importing theirs warns of deprecated things, so its parameters are written down here.
    parameters = inspect.signature(lockstitch.optim.DistributedOptimizer).parameters
    assert list(parameters) == ["optimizer_class", "params_rref", "args", "kwargs"]


def test_names_of_the_incumbent_that_programs_use_are_here() -> None:
    theirs = {name for name in dir(torch_rpc) if not name.startswith("_")}
    missing = {name for name in theirs - NOT_OFFERED if not hasattr(lockstitch.rpc, name)}
    assert missing == set()


def test_torchs_other_distributed_optimizers_are_found_beside_ours() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs tells of deprecated things when first imported
        theirs = importlib.import_module("torch.distributed.optim")
        assert lockstitch.optim.ZeroRedundancyOptimizer is theirs.ZeroRedundancyOptimizer
    assert lockstitch.optim.DistributedOptimizer is not theirs.DistributedOptimizer
    with pytest.raises(AttributeError, match="lockstitch.optim"):
        lockstitch.optim.NoSuchOptimizer  # noqa: B018 - asking is the test
