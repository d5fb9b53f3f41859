"""Where the ranks of a process set have their tensors, and what follows: are these reduced by NCCL,
from device to device, or in host memory?

All ranks are told the same, so all come to the same. Nothing here touches a device but `placed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from lockstitch.devices.kinds import hardware_name
from lockstitch.errors import CollectiveError, ProtocolError
from lockstitch.link.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

DeviceOperations = Literal["auto", "nccl", "host"]


@dataclass(frozen=True, slots=True)
class Placement:
    """What one rank tells the others of its set about its device."""

    device: str
    """Which GPU, the same word for the same one whoever names it; empty: none."""
    has_nccl: bool
    """Whether this rank's torch knows NCCL."""
    wish: DeviceOperations = "auto"
    """What this rank's options say."""
    address: str = ""
    """Where the first rank awaits the others, and the word that lets them in."""
    word: str = ""

    def encode(self) -> bytes:
        """Returns the placement as bytes."""
        return _CODEC.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> Placement:
        """Returns the placement that `encode` has written. Raises `ProtocolError` for anything
        else."""
        return _CODEC.decode(content)


_CODEC = Codec(Placement, complaint="no rank describes its devices so", error=ProtocolError)


def placed(device: torch.device | None, host: str, wish: DeviceOperations) -> Placement:
    """Returns the placement of this rank, on that host, with tensors on that device."""
    has_nccl = torch.distributed.is_nccl_available()
    return Placement("" if device is None else hardware_name(device, host), has_nccl, wish)


def is_for_nccl(placements: Sequence[Placement], ranks: Sequence[int]) -> bool:
    """Returns whether these ranks, in the order of their placements, reduce by NCCL.

    Left to itself it is so where each has a GPU of its own and a torch with NCCL. Raises
    `CollectiveError` where NCCL is demanded and cannot be, and where ranks demand different things.
    """
    wishes = {placement.wish for placement in placements}
    if len(wishes) > 1:
        told = ", ".join(
            f"rank {rank}: {each.wish}" for rank, each in zip(ranks, placements, strict=True)
        )
        raise CollectiveError(
            f"the ranks were told different things about operations on GPUs ({told}): set "
            "HOROVOD_GPU_OPERATIONS, or SessionOptions.device_operations, alike on all of them"
        )
    (wish,) = wishes
    if wish == "host":
        return False
    hindrance = _hindrance(placements, ranks)
    if hindrance is not None and wish == "nccl":
        raise CollectiveError(
            f"NCCL was demanded for tensors on GPUs, but {hindrance}: give each rank a GPU of its "
            "own (torch.cuda.set_device(hvd.local_rank())), or leave HOROVOD_GPU_OPERATIONS unset"
        )
    return hindrance is None


def _hindrance(placements: Sequence[Placement], ranks: Sequence[int]) -> str | None:
    """Why NCCL cannot be used; None if it can."""
    users: dict[str, int] = {}
    for rank, placement in zip(ranks, placements, strict=True):
        if not placement.has_nccl:
            return f"the torch of rank {rank} was built without it"
        if not placement.device:
            return f"rank {rank} uses no GPU"
        other = users.setdefault(placement.device, rank)
        if other != rank:
            return f"ranks {other} and {rank} use the same GPU ({placement.device})"
    return None
