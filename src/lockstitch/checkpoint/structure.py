"""States as they are written: tensors apart, and everything else as JSON. No I/O here.

A state is what `state_dict()` returns, or a tensor, or plain data: dicts, lists, tuples, numbers,
strings, True, False, None. Whatever JSON cannot say by itself is said by a dict with one key that
begins with `$`:

    {"$tensor": "model.weight"}    {"$tuple": […]}    {"$dict": [[key, value], …]}
    {"$stored": ["worker1", "optimizer.state.0.exp_avg"]}    a tensor in another worker's file
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable


@needed
class Stored(NamedTuple):
    """Stands in a state for a tensor that some worker writes into its own file."""

    worker: str
    key: str


class Copy(NamedTuple):
    """A copy of states, by name, which may be written when the originals have changed."""

    plain: dict[str, Any]
    """What JSON can say of each state."""
    tensors: dict[str, torch.Tensor]


def copy_states(states: Mapping[str, object]) -> Copy:
    """Returns a copy. Raises `TypeError` for what a checkpoint cannot hold."""
    encoder = Encoder()
    plain = {name: encoder.encode(state, name) for name, state in states.items()}
    return Copy(plain, encoder.tensors)


Key = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype, bool]


class Encoder:
    """Takes states apart. `tensors` are those met so far, by the keys under which they are written:
    on the CPU, contiguous, none sharing memory with another or with the original. With `copy=False`
    it only checks that states can be written. `tensors`: those which are in the file already."""

    def __init__(
        self, *, copy: bool = True, tensors: dict[str, torch.Tensor] | None = None
    ) -> None:
        self._copies = copy
        self.tensors: dict[str, torch.Tensor] = {} if tensors is None else tensors
        self._known: dict[Key, str] = {}
        self._kept: list[torch.Tensor] = []

    def encode(self, state: object, path: str) -> Any:
        """Returns `state` as JSON. Raises `TypeError` that names, by `path`, what cannot be
        written."""
        if isinstance(state, torch.Tensor):
            return {"$tensor": self._tensor(state, path)}
        if isinstance(state, Stored):
            return {"$stored": list(state)}
        if state is None or type(state) in (bool, int, float, str):
            return state
        if isinstance(state, Mapping):
            items = [(key, self.encode(value, f"{path}.{key}")) for key, value in state.items()]
            if all(type(key) is str and not key.startswith("$") for key, _ in items):
                return dict(items)
            return {"$dict": [[self.encode(key, f"{path} (a key)"), value] for key, value in items]}
        if isinstance(state, (list, tuple)):
            values = [self.encode(value, f"{path}.{index}") for index, value in enumerate(state)]
            return {"$tuple": values} if isinstance(state, tuple) else values
        raise TypeError(
            f"{path} is of type {type(state).__name__}, which a checkpoint cannot hold: only "
            "tensors, numbers, strings, True, False, None, and lists, tuples and dicts of these"
        )

    def _tensor(self, tensor: torch.Tensor, path: str) -> str:
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
            raise TypeError(
                f"{path} is a {tensor.dtype} tensor of layout {tensor.layout}: only "
                "dense ones of real numbers, integers and booleans can be saved"
            )
        try:
            address = tensor.untyped_storage().data_ptr()
        except RuntimeError:
            address = 0
        if tensor.numel() and not address:
            raise TypeError(
                f"{path} is a {type(tensor).__name__} on {tensor.device}, which has no memory of "
                "its own: register a tensor that has (of a DTensor, its full_tensor())"
            )
        if not self._copies:
            return path
        place = (address, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())
        view = (*place, tensor.dtype, tensor.is_neg())
        known = self._known.get(view) if tensor.numel() else None
        if known is None:
            self._kept.append(tensor)  # its address shall not be another's meanwhile
            self._known[view] = known = self._free(path)
            self.tensors[known] = tensor.resolve_neg().to("cpu", copy=True).contiguous()
        return known

    def _free(self, path: str) -> str:
        """A key that no other tensor has: `a.b` of `{"a": {"b": …}}`, and of `{"a.b": …}`."""
        number = 2
        key = path
        while key in self.tensors:
            key, number = f"{path}#{number}", number + 1
        return key


def decode(written: Any, tensor: Callable[[str], object]) -> Any:
    """Returns the state; `tensor` finds tensors of the file by key. Raises `ValueError` for what
    was not written by an `Encoder`."""
    if not isinstance(written, dict):
        is_list = isinstance(written, list)
        return [decode(value, tensor) for value in written] if is_list else written
    mark = next((key for key in written if key.startswith("$")), None)
    if mark is None:
        return {key: decode(value, tensor) for key, value in written.items()}
    content = written[mark]
    if len(written) == 1 and mark == "$tensor" and isinstance(content, str):
        return tensor(content)
    if len(written) == 1 and mark == "$stored" and isinstance(content, list) and len(content) == 2:
        return Stored(*content)
    if len(written) == 1 and mark == "$tuple" and isinstance(content, list):
        return tuple(decode(value, tensor) for value in content)
    if len(written) == 1 and mark == "$dict" and isinstance(content, list):
        return {decode(key, tensor): decode(value, tensor) for key, value in content}
    raise ValueError(f"{written!r} is nothing that a checkpoint holds")


def fill(state: Any, tensor: Callable[[Stored], torch.Tensor]) -> Any:
    """Returns the state with what `tensor` gives in place of each `Stored`."""
    if isinstance(state, Stored):
        return tensor(state)
    if isinstance(state, dict):
        return {key: fill(value, tensor) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(fill(value, tensor) for value in state)
    return state
