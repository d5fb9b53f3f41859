"""Tensors that came from other workers outside of any context, though they want gradients.

No context has recorded such a message, so the tensor has no history here: it is a leaf, and what it
was computed of on the other worker gets no gradient. As the root of a backward pass that is an
error; below one it is legal, and nearly always a call that stands outside the context by mistake.
So a pass warns of each such call, once.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lockstitch.autograd.graph import leaves_below

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from lockstitch.autograd.graph import Entry


class OutsideTensors:
    """Those of one worker, as long as they live, and the calls that brought them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: MutableMapping[torch.Tensor, str] = WeakIdKeyDictionary()
        self._told: set[str] = set()
        self._has_noted = False

    def __repr__(self) -> str:
        return f"<OutsideTensors · {len(self._calls)}>"

    def note(self, tensor: torch.Tensor, call: str) -> None:
        """`tensor` has come by `call`, as a warning would say it. A parameter is a leaf by nature:
        who is sent one means to train the copy."""
        if type(tensor) is not torch.nn.Parameter:
            with self._lock:
                self._calls[tensor] = call
                self._has_noted = True

    def warn_of(self, roots: Entry) -> None:
        """Warns, once for each call, where the graph below `roots` ends in what it has brought."""
        if not self._has_noted or not self._calls:
            return
        for leaf in leaves_below(roots):
            with self._lock:
                call = self._calls.get(leaf)
                is_news = call is not None and call not in self._told
                if call is not None:
                    self._told.add(call)
            if is_news:
                warnings.warn(
                    f"a backward pass ends in a tensor of shape {tuple(leaf.shape)} that {call}, "
                    "outside of any autograd context: nothing of which it was computed there gets "
                    "a gradient. Make the call within the context, or detach the tensor",
                    UserWarning,
                    stacklevel=4,  # the call of `backward`, or of `grad`
                )
