"""What is private to torch and only named by us, for those who do not import torch."""

from __future__ import annotations

from typing import Final

COMPILER_RULES: Final = "torch._dynamo.trace_rules"
"""The module that knows what a compiler passes over; `torch_internals.compiling` has its probe."""

COMPILER: Final = "torch._dynamo"
"""The compiler's package: where it was not imported, nothing is being compiled."""

OPAQUE: Final = "_torchdynamo_disable"
"""The attribute of a function that says that a compiler is to leave it alone. It is set without
importing the compiler; `torch_internals.compiling` has the probe."""

REASON_OF_OPAQUE: Final = "_torchdynamo_disable_msg"
"""Likewise: why. The compiler says it where it must not cut the function that calls."""

COMPILED_OF: Final = "_torchdynamo_orig_callable"
"""Of a compiled function: the one that it was compiled of."""

NOT_COMPILED: Final = "_disable_dynamo"
"""Of `torch`: keeps the compiler out of a function, for which it imports it. `optim.eager` looks
whether a function is wrapped by it, and leaves alone what is not."""

GRADIENT_MODE: Final = "_use_grad_for_differentiable"
"""Of `torch.optim.optimizer`, likewise: sets the mode of gradients in a step."""

FUNCTIONS_OF_C: Final = "torch._C._nn"
"""Where builtin functions live that do not say it themselves."""

RPC_OF_C: Final = "torch._C._distributed_rpc"
AUTOGRAD_OF_C: Final = "torch._C._distributed_autograd"
SHARDS: Final = "torch.distributed._shard.sharded_tensor.api"

NAMES_OF_RPC: Final = (
    "PyRRef",
    "RpcAgent",
    "RpcBackendOptions",
    "TensorPipeAgent",
    "WorkerInfo",
    "_DEFAULT_INIT_METHOD",
    "_DEFAULT_NUM_WORKER_THREADS",
    "_DEFAULT_RPC_TIMEOUT_SEC",
    "_UNSET_RPC_TIMEOUT",
    "_delete_all_user_and_unforked_owner_rrefs",
    "_get_current_rpc_agent",
    "_is_current_rpc_agent_set",
    "_reset_current_rpc_agent",
    "_rref_context_get_debug_info",
    "_set_and_start_rpc_agent",
    "_set_rpc_timeout",
    "enable_gil_profiling",
    "get_rpc_timeout",
)
"""What `replacement` has stand for ours in `RPC_OF_C`. None is used, so none is probed."""

NAMES_OF_AUTOGRAD: Final = (
    "DistAutogradContext",
    "_current_context",
    "_get_debug_info",
    "_get_max_id",
    "_init",
    "_is_valid_context",
    "_new_context",
    "_release_context",
    "_retrieve_context",
    "backward",
    "get_gradients",
)
"""Likewise in `AUTOGRAD_OF_C`."""
