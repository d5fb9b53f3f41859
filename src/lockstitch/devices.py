"""Where devices differ: elsewhere no code asks whether a tensor lives on an accelerator.

Between workers a tensor travels through host memory. Where a *device map* says nothing about the
two, it arrives on the device of the same name where the receiver has one, else on the CPU.

Copies between host and device are begun one after the other and waited for once, on the streams
that are current where they are begun: what is sent is what these streams had to compute, and what
has arrived is ready for them, or for every stream where nobody knows which one is meant.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

HOST: Final = torch.device("cpu")
_SMALL_BYTES: Final = 64 * 1024
_MOST_PINNED: Final = 64 << 20

is_on_host: Final[Callable[[torch.Tensor], bool]] = attrgetter("is_cpu")
"""Whether the CPU can read the tensor's memory."""

_UNMAPPED: Final = (
    "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU "
    "before sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to "
    "explicitly configure device mapping. {} device mapping is not available for destination {} "
    "for device {} but received a tensor on that device."
)


class Placement:
    """What a caller's device map says of tensors on their way to one callee, and of those in its
    answers, which come back by the inverse map."""

    def __init__(self, peer: str, there: Mapping[torch.device, torch.device]) -> None:
        """`there`: this worker's devices → those of the worker named `peer`, one-to-one."""
        self.peer = peer
        self.there = dict(there)
        self.back = {target: source for source, target in there.items()}

    def __repr__(self) -> str:
        pairs = ", ".join(f"{source} → {target}" for source, target in self.there.items())
        return f"<Placement for {self.peer!r} · {pairs}>"

    def destination(self, device: torch.device) -> torch.device:
        """Where a tensor on `device` of ours goes. Raises `RuntimeError` for one on an accelerator
        that the map does not name."""
        return self._find(self.there, device, "Request")

    def source(self, device: torch.device) -> torch.device:
        """Where an answer's tensor on `device` of theirs goes. Raises `RuntimeError` likewise."""
        return self._find(self.back, device, "Response")

    def _find(
        self, known: dict[torch.device, torch.device], device: torch.device, what: str
    ) -> torch.device:
        found = known.get(device)
        if found is None:
            if device.type != "cpu":
                raise RuntimeError(_UNMAPPED.format(what, self.peer, device))
            return HOST
        return found


def count(kind: str) -> int:
    """How many devices of that kind ("cuda") this machine has."""
    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "device_count"):
        return 0
    number: int = module.device_count()
    return number


def is_here(device: torch.device) -> bool:
    """Whether this machine has that device."""
    return device.type == "cpu" or (device.index or 0) < count(device.type)


def stage_out(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory that is complete when this returns."""
    return tensor.detach().cpu()


def move_all(
    tensors: Iterable[torch.Tensor], devices: Iterable[torch.device], *, is_used_here: bool = False
) -> list[torch.Tensor]:
    """Each tensor on its device, as plain tensors that want no gradient; complete when this
    returns. Where the result `is_used_here`, on the current streams, small ones may be under way.
    """
    moved: list[torch.Tensor] = []
    used: set[torch.device] = set()
    with torch.inference_mode(False), torch.no_grad():
        for tensor, device in zip(tensors, devices, strict=True):
            if tensor.device == device:
                moved.append(tensor)
            elif device.type == "cuda":
                source = _from_pinned(tensor)
                if not is_used_here or source is tensor:
                    used.add(device)
                moved.append(source.to(device, non_blocking=True))
            else:
                moved.append(tensor.to(device))
    wait_for(used)
    return moved


def _from_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A small tensor in pinned memory: CUDA takes longer over other memory than copying it takes.
    Torch keeps the copy until the device has read it."""
    is_small = tensor.layout is torch.strided and tensor.nbytes <= _SMALL_BYTES
    return tensor.pin_memory() if is_small and is_on_host(tensor) else tensor


def wait_for(devices: Iterable[torch.device]) -> None:
    """Returns when what the current streams of these CUDA devices have to do by now is done."""
    for device in devices:
        torch.cuda.current_stream(device).record_event().synchronize()


def side_streams() -> list[torch.cuda.Event]:
    """Events on the streams that this thread has made current instead of the default ones, for
    another thread to wait for. CUDA is in use, here or in the process that this one was forked of.
    """
    if torch.cuda._is_in_bad_fork():
        return []
    streams = map(torch.cuda.current_stream, range(torch.cuda.device_count()))
    return [
        stream.record_event()
        for stream in streams
        if stream != torch.cuda.default_stream(stream.device)
    ]


def use_here(tensors: Iterable[torch.Tensor]) -> None:
    """Their memory is in use by this thread's current streams, too, whichever they were made on."""
    for tensor in tensors:
        if tensor.is_cuda:
            stream = torch.cuda.current_stream(tensor.device)
            for part in (tensor,) if tensor.layout is torch.strided else _parts(tensor):
                part.record_stream(stream)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold what one of another layout consists of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def begin_fetch(flat: torch.Tensor, address: int) -> None:
    """Begins to copy a tensor of bytes to host memory at `address`, until `wait_for` its device."""
    window = (ctypes.c_char * flat.nbytes).from_address(address)
    torch.frombuffer(window, dtype=torch.uint8).copy_(flat, non_blocking=True)


def staging_bytes(size: int) -> torch.Tensor:
    """Host memory for what a device copies out, pinned where torch may keep it for the next time:
    it never gives that back. CUDA is in use."""
    return torch.empty(size, dtype=torch.uint8, device=HOST, pin_memory=size <= _MOST_PINNED)


def pin(owner: Any, address: int, size: int) -> None:
    """Has memory locked for quick copies to and from CUDA devices, until `owner` is gone, whose it
    is. Does nothing where that is not possible: copies then take a detour. CUDA is in use."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(address, size, 0)):
        # CUDA keeps an error until somebody asks; the next kernel does.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")
        return
    weakref.finalize(owner, _unpin, runtime, address, os.getpid()).atexit = False


def _unpin(runtime: Any, address: int, process: int) -> None:
    if os.getpid() == process:
        runtime.cudaHostUnregister(address)
