"""What a backward pass notes of itself while somebody records: its stitches, its gradients.

A stitch is known by the same id on both sides, and so are the gradients that come back for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.attach.recorder import RECORDER

_MOST_SHOWN: Final = 4

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lockstitch.ids import GlobalId


def note_stitch(begun: float, stitch: GlobalId, tensors: Sequence[torch.Tensor]) -> None:
    """Tensors that want gradients are about to leave, as one message; recorded since `begun`."""
    words = ", ".join(map(_form, tensors[:_MOST_SHOWN]))
    more = ", …" if len(tensors) > _MOST_SHOWN else ""
    RECORDER.end(begun, "stitch", f"stitch of {words}{more}", "", *_key(stitch))


def note_gradients(
    begun: float,
    kind: str,
    worker: str,
    stitch: GlobalId,
    gradients: Sequence[torch.Tensor | memoryview | None],
) -> None:
    """Gradients have been sent for a stitch, or have come ("gradient sent", "gradient received"),
    or word that there will be none."""
    nbytes = sum(each.nbytes for each in gradients if each is not None)
    name = kind if gradients else f"no {kind}"
    sent, received = (nbytes, 0) if kind == "gradient sent" else (0, nbytes)
    RECORDER.end(begun, kind, name, worker, *_key(stitch), sent, received)


def _key(stitch: GlobalId) -> tuple[str, int]:
    # Numbers begin at 0, which stands for no key.
    return f"stitch {stitch.rank}.{stitch.generation}", stitch.counter + 1


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
