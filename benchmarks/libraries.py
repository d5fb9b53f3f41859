"""The library under test: the same names, from Lockstitch or from PyTorch."""

from __future__ import annotations

import importlib
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

LOCKSTITCH = "lockstitch"
TORCH = "torch.distributed"
RAW = "raw limit"
CALLER, CALLEE, THIRD, FOURTH = "caller", "callee", "third", "fourth"

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Library:
    """What a case gets: modules with the same names, whoever wrote them."""

    name: str
    rpc: ModuleType
    dist_autograd: ModuleType
    backward_options: Mapping[str, str] = field(default_factory=dict)
    """What `backward` gets beyond the incumbent's arguments: `mode`, which only ours has."""

    def backward(self, context_id: int, roots: list[torch.Tensor]) -> None:
        self.dist_autograd.backward(context_id, roots, **self.backward_options)

    def join(self, name: str, rank: int, world_size: int, meeting_place: str, *, tcp: bool) -> None:
        """Makes this process a worker; with `tcp` it talks to the others as if they were far."""
        options: dict[str, Any] = {"init_method": meeting_place}
        if tcp:
            options |= _over_tcp(self.name, rank)
        self.rpc.init_rpc(
            name,
            rank=rank,
            world_size=world_size,
            rpc_backend_options=self.rpc.TensorPipeRpcBackendOptions(**options),
        )


def _over_tcp(library: str, rank: int) -> dict[str, Any]:
    """Options that keep both from using what only processes of one host have in common."""
    if library == TORCH:
        return {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]}
    joining = importlib.import_module("lockstitch.rpc.joining")
    joining.host_identity = lambda: f"{socket.gethostname()}/{rank}"  # type: ignore[attr-defined]
    return {"address": _LOOPBACK, "insecure": True}


def load(name: str) -> Library:
    """Imports the library `name`; raises AssertionError if another one answers to that name."""
    library = Library(
        name,
        importlib.import_module(f"{name}.rpc"),
        importlib.import_module(f"{name}.autograd"),
    )
    for module, names in (
        (library.rpc, ("rpc_sync", "rpc_async", "remote", "init_rpc")),
        (library.dist_autograd, ("backward", "context", "get_gradients")),
    ):
        assert module.__name__.startswith(f"{name}."), f"{module.__name__} poses as {name}"
        for function in names:
            author = getattr(module, function).__module__
            package = name.partition(".")[0]
            assert author.partition(".")[0] == package, f"{function} of {name} is {author}'s"
    return library


def require_running(name: str) -> None:
    """After joining: PyTorch's own agent runs if, and only if, PyTorch is what is measured."""
    runs = torch.distributed.rpc.api._is_current_rpc_agent_set()  # type: ignore[attr-defined]
    assert runs == (name == TORCH), f"measuring {name}: is PyTorch's agent running? {runs}"
