"""Where a caller's device map sends tensors, and where it brings those of the answers back to.

Between workers a tensor travels through host memory. Where a map says nothing about the two
workers, it arrives on the device of the same name where the receiver has one, else on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.devices.kinds import HOST, is_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_UNMAPPED: Final = (
    "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU "
    "before sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to "
    "explicitly configure device mapping. {} device mapping is not available for destination {} "
    "for device {} but received a tensor on that device."
)


class DeviceMap:
    """What a caller's device map says of tensors on their way to one callee, and of those in its
    answers, which come back by the inverse map."""

    def __init__(self, peer: str, there: Mapping[torch.device, torch.device]) -> None:
        """`there`: this worker's devices → those of the worker named `peer`, one-to-one."""
        self.peer = peer
        self.there = dict(there)
        self.back = {target: source for source, target in there.items()}

    def __repr__(self) -> str:
        pairs = ", ".join(f"{source} → {target}" for source, target in self.there.items())
        return f"<DeviceMap for {self.peer!r} · {pairs}>"

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
            if not is_host(device):
                raise RuntimeError(_UNMAPPED.format(what, self.peer, device))
            return HOST
        return found
