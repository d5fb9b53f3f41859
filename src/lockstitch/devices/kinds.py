"""Which devices there are, and which kind a device or a tensor belongs to.

"GPU" means what torch calls a CUDA device, ROCm's included; "the host" is the CPU with its memory.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

HOST: Final = torch.device("cpu")
META: Final = torch.device("meta")
_ANY_GPU: Final = torch.device("cuda")

is_on_host: Final[Callable[[torch.Tensor], bool]] = attrgetter("is_cpu")
"""Whether the CPU can read the tensor's memory."""


def is_host(device: torch.device) -> bool:
    """Whether `device` is the CPU."""
    return device.type == "cpu"


def is_gpu(device: torch.device) -> bool:
    """Whether `device` is a GPU, with a number or without."""
    return device.type == "cuda"


def kind_of(device: torch.device) -> str:
    """The word for the kind of device it is: "cpu", "cuda", …"""
    return device.type


def gpu(index: int | None = None) -> torch.device:
    """The GPU of that number; by default the current one, which initialises CUDA."""
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


def numbered(device: torch.device) -> torch.device:
    """A GPU without a number as the first one; any other device as it is."""
    return gpu(0) if device == _ANY_GPU else device


def count(kind: str = "cuda") -> int:
    """How many devices of that kind this machine has."""
    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "device_count"):
        return 0
    number: int = module.device_count()
    return number


def count_like(device: torch.device) -> int:
    """How many devices of the kind of `device` this machine has."""
    return count(device.type)


def gpu_names() -> list[str]:
    """What the GPUs of this machine are called by their maker."""
    return [torch.cuda.get_device_name(index) for index in range(count())]


def is_here(device: torch.device) -> bool:
    """Whether this machine has that device."""
    return is_host(device) or (device.index or 0) < count_like(device)


def are_gpus_usable() -> bool:
    """Whether torch knows GPUs and a driver for them is here."""
    return torch.cuda.is_available()


def is_gpu_context_open() -> bool:
    """Whether this very process has initialised CUDA, so that its forks cannot use it."""
    return torch.cuda.is_initialized()  # type: ignore[no-untyped-call, no-any-return]


def initialise_gpus() -> None:
    """Initialises CUDA now rather than at its first use; nothing where there is no GPU."""
    if are_gpus_usable():
        torch.cuda.init()  # type: ignore[no-untyped-call]


def generators_of(device: torch.device) -> tuple[torch.Generator, ...]:
    """Those that operations on `device` draw random numbers from: the CPU's, and its own."""
    if not is_gpu(device):
        return (torch.default_generator,)
    return (torch.default_generator, torch.cuda.default_generators[device.index or 0])


def hardware_name(device: torch.device, host: str) -> str:
    """A word for the GPU itself, the same for every process of `host` that uses it; empty for
    other devices."""
    if not is_gpu(device):
        return ""
    properties = torch.cuda.get_device_properties(device)
    # By the bus, as NCCL tells GPUs apart: parts of one (MIG) have names of their own.
    places = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if all(hasattr(properties, place) for place in places):
        numbers = ":".join(f"{getattr(properties, place):x}" for place in places)
        return f"{host} {numbers}"
    return str(getattr(properties, "uuid", "")) or f"{host} {device.index}"
