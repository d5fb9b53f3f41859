"""The operations as methods: each says what it is as a `Request`, and submits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from lockstitch.collectives.requests import AVERAGE, GLOBAL_SET, Kind, Reduction, Request
from lockstitch.modes import are_plain, has_memory, writable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.handles import Handle

T = TypeVar("T")


class Operations:
    """The operations of a session. `name` and `process_set` say with whom one is done."""

    def submit(self, request: Request) -> Handle[Any]:
        """Begins an operation."""
        raise NotImplementedError

    def wait(self, handle: Handle[T]) -> T:
        """Returns the result of an operation."""
        raise NotImplementedError

    def allreduce(
        self,
        tensor: torch.Tensor,
        reduction: Reduction = AVERAGE,
        *,
        name: str | None = None,
        process_set: int = GLOBAL_SET,
        output: torch.Tensor | None = None,
    ) -> Handle[torch.Tensor]:
        """Reduces tensors of one shape and dtype over the ranks.

        The result goes to `output` (`output=tensor`: in place), or to a new tensor. Ranks that have
        joined contribute nothing.
        """
        tensors = (plain(tensor),)
        outputs: tuple[torch.Tensor, ...] | None = tensors
        if output is not tensor:
            outputs = None if output is None else (plain(output),)
        return self.submit(
            Request(
                Kind.ALLREDUCE,
                name or "",
                tensors,
                outputs,
                reduction,
                process_set=process_set,
            )
        )

    def grouped_allreduce(
        self,
        tensors: Sequence[torch.Tensor],
        reduction: Reduction = AVERAGE,
        *,
        name: str | None = None,
        process_set: int = GLOBAL_SET,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> Handle[list[torch.Tensor]]:
        """Like `allreduce` for several tensors as one operation: all of them or none."""
        return self.submit(
            Request(
                Kind.ALLREDUCE,
                name or "",
                _all_plain(tensors),
                outputs=None if outputs is None else _all_plain(outputs),
                reduction=reduction,
                process_set=process_set,
                is_group=True,
            )
        )

    def allgather(
        self, tensor: torch.Tensor, *, name: str | None = None, process_set: int = GLOBAL_SET
    ) -> Handle[torch.Tensor]:
        """All ranks' rows, one below the other in the order of ranks.

        The numbers of rows may differ, everything else must not. Afterwards `handle.rows[0]` has
        the number of rows from each rank.
        """
        full_name = name or ""
        tensors = (plain(tensor),)
        return self.submit(Request(Kind.ALLGATHER, full_name, tensors, process_set=process_set))

    def grouped_allgather(
        self,
        tensors: Sequence[torch.Tensor],
        *,
        name: str | None = None,
        process_set: int = GLOBAL_SET,
    ) -> Handle[list[torch.Tensor]]:
        """Like `allgather` for several tensors as one operation: all of them or none."""
        return self.submit(
            Request(
                Kind.ALLGATHER,
                name or "",
                _all_plain(tensors),
                process_set=process_set,
                is_group=True,
            )
        )

    def broadcast(
        self,
        tensor: torch.Tensor,
        root: int,
        *,
        name: str | None = None,
        process_set: int = GLOBAL_SET,
        output: torch.Tensor | None = None,
    ) -> Handle[torch.Tensor]:
        """The tensor of rank `root`, a global rank also in a process set."""
        tensors = (plain(tensor),)
        outputs: tuple[torch.Tensor, ...] | None = tensors
        if output is not tensor:
            outputs = None if output is None else (plain(output),)
        return self.submit(
            Request(
                Kind.BROADCAST,
                name or "",
                tensors,
                outputs=outputs,
                root=root,
                process_set=process_set,
            )
        )

    def alltoall(
        self,
        tensor: torch.Tensor,
        splits: Sequence[int] | None = None,
        *,
        name: str | None = None,
        process_set: int = GLOBAL_SET,
    ) -> Handle[list[torch.Tensor]]:
        """Sends `splits[i]` rows to the ith rank of the set (without splits: the same number to
        each). The result is two tensors: the rows received, in the order of ranks, and how many
        came from each rank (int32)."""
        return self.submit(
            Request(
                Kind.ALLTOALL,
                name or "",
                (plain(tensor),),
                splits=None if splits is None else tuple(map(int, splits)),
                process_set=process_set,
                is_group=True,
            )
        )

    def reducescatter(
        self,
        tensor: torch.Tensor,
        reduction: Reduction = AVERAGE,
        *,
        name: str | None = None,
        process_set: int = GLOBAL_SET,
    ) -> Handle[torch.Tensor]:
        """Reduces, and leaves each rank its share of the rows; the first ranks get one more where
        the number does not divide."""
        return self.submit(
            Request(
                Kind.REDUCESCATTER,
                name or "",
                (plain(tensor),),
                reduction=reduction,
                process_set=process_set,
            )
        )

    def grouped_reducescatter(
        self,
        tensors: Sequence[torch.Tensor],
        reduction: Reduction = AVERAGE,
        *,
        name: str | None = None,
        process_set: int = GLOBAL_SET,
    ) -> Handle[list[torch.Tensor]]:
        """Like `reducescatter` for several tensors as one operation: all of them or none."""
        return self.submit(
            Request(
                Kind.REDUCESCATTER,
                name or "",
                _all_plain(tensors),
                reduction=reduction,
                process_set=process_set,
                is_group=True,
            )
        )

    def barrier(self, *, process_set: int = GLOBAL_SET) -> None:
        """Returns when every rank of the set has come here, or has joined."""
        self.wait(self.submit(Request(Kind.BARRIER, process_set=process_set, is_awaited=True)))

    def join(self) -> int:
        """This rank is out of data: allreduces of the others go on without it until all have
        joined. Returns the rank that joined last. Other operations that need this rank fail."""
        last: int = self.wait(self.submit(Request(Kind.JOIN, "join", is_awaited=True)))
        return last


class _Marked(Operations):
    """The same operations of a session, whose requests say how they are submitted."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def wait(self, handle: Handle[T]) -> T:
        return self._operations.wait(handle)


class Awaited(_Marked):
    """The same operations of a session, for who waits for them at once (`Request.is_awaited`)."""

    def submit(self, request: Request) -> Handle[Any]:
        request.is_awaited = True
        return self._operations.submit(request)


class Deferred(_Marked):
    """The same operations of a session, begun only: the call that submits one does none of its
    work (`Request.is_deferred`), so the name is in flight when it returns, also where this rank was
    the last to submit."""

    def submit(self, request: Request) -> Handle[Any]:
        request.is_deferred = True
        return self._operations.submit(request)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with nothing of autograd or of inference mode. Raises `TypeError` for anything
    else, `ValueError` where it stands for numbers that are not there."""
    if type(tensor) is not torch.Tensor or not are_plain():
        tensor = _with_memory(tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    return writable(tensor) if tensor.is_inference() else tensor


def _with_memory(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"a tensor is needed, not {type(tensor).__name__} ({tensor!r:.40}): "
            "torch.as_tensor makes one of numbers and arrays; objects have allgather_object and "
            "broadcast_object"
        )
    if has_memory(tensor):
        return tensor
    # A result of torch's functional collectives stands for a tensor that may still be under way.
    wait: Callable[[], torch.Tensor] | None = getattr(tensor, "wait", None)
    if wait is not None and has_memory(inner := wait()):
        return inner
    raise ValueError(
        f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} without data cannot be sent: "
        "operations between ranks are for real tensors, outside of fake-tensor modes, of the meta "
        "device and of the transforms of torch.func"
    )


def _all_plain(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(map(plain, tensors))
