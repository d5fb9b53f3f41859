"""What a pass of `grad` wants on one worker, where other passes want all leaves: the gradients of
chosen tensors. How it runs so that nothing else is computed: `narrowing`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.autograd.graph import GradientEdge

    from lockstitch.ids import GlobalId


class Selection:
    """The tensors chosen on this worker for the pass `backward_pass`, as edges of the graph, and
    the sum of what has arrived at each."""

    def __init__(self, backward_pass: GlobalId, edges: Sequence[GradientEdge]) -> None:
        self.backward_pass = backward_pass
        self.edges = tuple(edges)
        self.gradients: list[torch.Tensor | None] = [None] * len(self.edges)
        self._adding = threading.Lock()

    def __repr__(self) -> str:
        found = sum(gradient is not None for gradient in self.gradients)
        return f"<Selection · {len(self.edges)} tensors · {found} gradients>"

    def take(self) -> list[torch.Tensor | None]:
        """Hands out what has arrived, when the pass is over, and forgets it."""
        with self._adding:
            gradients, self.gradients = self.gradients, [None] * len(self.edges)
            self.edges = ()
            return gradients

    def add_gradients(
        self,
        leaves: Sequence[GradientEdge],
        gradients: list[torch.Tensor | None],
        *,
        keep_history: bool = False,
    ) -> None:
        """Adds what one run captured at `leaves`, which are those chosen."""
        with self._adding, torch.set_grad_enabled(keep_history):
            for index in range(len(leaves)):
                given, stored = gradients[index], self.gradients[index]
                if given is None:
                    continue
                if stored is None:
                    self.gradients[index] = given if keep_history else given.detach()
                elif stored.layout is torch.strided:
                    self.gradients[index] = stored + given
                else:
                    self.gradients[index] = given + stored
