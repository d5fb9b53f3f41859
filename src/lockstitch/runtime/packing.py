"""How values are packed and unpacked: by the worker's pickler, and stitched where an autograd
context wants that."""

from __future__ import annotations

import contextlib
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.errors import SerializationError, add_note
from lockstitch.runtime.functions import BY_VALUE, as_called
from lockstitch.torch_internals.tensors import values_of
from lockstitch.wire.encodings import CARRY_OWN, UnpickleSession
from lockstitch.wire.messages import Payload
from lockstitch.wire.pickling import pack, pack_flat_with_own
from lockstitch.wire.staging import StagedPayload, settled
from lockstitch.wire.unpicklable import describe_unpicklable
from lockstitch.wire.unpickling import discard, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lockstitch.ids import WorkerId
    from lockstitch.runtime.interceptor import Interceptor
    from lockstitch.runtime.thread_pool import ThreadPool
    from lockstitch.wire.encodings import PicklingRegistry
    from lockstitch.wire.messages import Stitch

    WhatToCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]
    """A function, its arguments and those given by name."""

_ADVICE: Final = (
    "What belongs to its process can stay there: pass an RRef to it, or have its class leave it "
    "out in __getstate__"
)


class Values:
    """See the module. What a payload carries that nobody will read is given back on a thread of
    the pool."""

    def __init__(self, pool: ThreadPool, pickling: PicklingRegistry) -> None:
        self._pool = pool
        self.pickling = pickling
        self.interceptor: Interceptor | None = None
        """Sees each message with values, to stitch tensors onto the graph."""

    def pack(self, value: object) -> Payload:
        """A payload that `unpack` of any worker reads."""
        return pack(value, self.pickling)[0]

    def unpack(self, payload: Payload) -> Any:
        """The value of a payload made by `pack`."""
        return unpack(payload, self.pickling)

    def discard(self, payload: Payload, sender: WorkerId) -> None:
        """Nobody will read this payload: gives back what it carries."""
        if payload.encoding in CARRY_OWN:
            self._pool.spawn(lambda: discard(payload, self.pickling, UnpickleSession(sender)))

    def pack_for(self, value: object, to: WorkerId) -> tuple[Payload, Stitch | None]:
        """Packs a value for `to`, stitched where this thread is inside an autograd context."""
        payload, leaf_ids = pack(value, self.pickling, to, records=self.records)
        return payload, self.stitch(to, payload.items, leaf_ids)

    def records(self) -> bool:
        """Whether tensors that this thread sends now are stitched, so that gradients come back."""
        interceptor = self.interceptor
        return (
            interceptor is not None and bool(interceptor.is_active()) and interceptor.is_recording()
        )

    def stitch(
        self, to: WorkerId, items: Sequence[Any] = (), leaf_ids: Collection[int] = ()
    ) -> Stitch | None:
        """What an autograd context adds to a message with these items; None outside of any. Items
        whose id is in `leaf_ids` stay leaves. A context travels although no tensor does."""
        interceptor = self.interceptor
        if interceptor is None or not interceptor.is_active():
            return None
        if leaf_ids:
            items = [None if id(item) in leaf_ids else item for item in items]
        return interceptor.outgoing(to, items)

    def note_unstitched(self, items: Sequence[Any], origin: Callable[[], str]) -> None:
        """Notes those tensors of a message without a stitch for which a gradient is wanted."""
        interceptor = self.interceptor
        if interceptor is not None:
            for item in items:
                if isinstance(item, torch.Tensor) and item.requires_grad:
                    interceptor.unstitched(item, origin())

    def unpack_from(
        self,
        body: Payload,
        stitch: Stitch | None,
        sender: WorkerId,
        session: UnpickleSession | None = None,
        *,
        records: bool = True,
    ) -> Any:
        """Reads a payload; tensors that the stitch names begin a graph here, if that `records`."""
        if type(body) is StagedPayload:
            body = settled(body)
        if stitch is not None and self.interceptor is not None:
            items = list(body.items)
            self.interceptor.incoming(sender, stitch, items, records=records)
            body = Payload(body.encoding, body.stream, items)
        if session is None and body.encoding in CARRY_OWN:
            session = UnpickleSession(sender)
        return unpack(body, self.pickling, session)

    def pack_call(
        self,
        call: WhatToCall,
        number: int,
        to: WorkerId,
        kept: list[object],
    ) -> tuple[Payload, Collection[int]]:
        """The body of a call that `pack_arguments` does not make: arguments alone, with keywords,
        or with the function itself. `kept` takes what is to be kept until the answer is there."""
        function, args, kwargs = call
        if number == BY_VALUE:
            value: object = (function, args, kwargs or {})
            return pack(value, self.pickling, to, kept, records=self.records)
        if not kwargs:
            flat = pack_flat_with_own(args, self.pickling, to, kept)
            if flat is not None:
                return flat, set()
        return pack((args, kwargs or {}), self.pickling, to, kept, records=self.records)

    def refusal_of_call(self, error: Exception, call: WhatToCall, to: str) -> Exception:
        """What to raise where `pack_call` has raised `error`: it names the function, the callee and
        what cannot be sent. What a user's own code has raised is raised itself, with a note."""
        name, function, args, kwargs = as_called(*call)
        parts: list[tuple[str, object]] = [("the function", function)]
        parts += [(f"args[{place}]", value) for place, value in enumerate(args)]
        parts += [(f"kwargs[{key!r}]", value) for key, value in kwargs.items()]
        return self._refusal(f"a call of {name}", error, parts, to)

    def refusal_of_value(self, error: Exception, value: object, what: str, to: str) -> Exception:
        """The same for the answer to a call: `what` it is."""
        if isinstance(value, (GeneratorType, AsyncGeneratorType)):
            return SerializationError(
                f"cannot send {what} to worker {to!r}: it is a generator. rpc.stream in the place "
                "of rpc_sync yields its items where they are wanted; rpc.remote leaves it where it "
                "is"
            )
        return self._refusal(what, error, [("value", value)], to)

    def _refusal(
        self, what: str, error: Exception, parts: list[tuple[str, object]], to: str
    ) -> Exception:
        text, part = f"cannot send {what} to worker {to!r}", ""
        with contextlib.suppress(Exception):  # of the user's objects must not hide the reason
            part = describe_unpicklable(parts, self.pickling, records=self.records)
        if not isinstance(error, SerializationError) or not error.reason:
            add_note(error, f"{text}: {part}" if part else text)
            return error
        text = f"{text}: {error.reason}"
        refusal = SerializationError(f"{text}: {part}. {_ADVICE}" if part else text)
        refusal.reason = error.reason
        refusal.__cause__ = error.__cause__
        return refusal


def payload_bytes(payload: Payload) -> int:
    """Returns the size of the values in a payload: of its stream, and of its tensors, in whatever
    way these go."""
    items, length = payload.items, len(payload.stream)
    return length + sum(map(item_bytes, items)) if items else length


def item_bytes(item: torch.Tensor | memoryview | None) -> int:
    """Returns how much memory an item of a message takes; of a sparse tensor, its values."""
    if item is None:
        return 0
    if isinstance(item, memoryview) or item.layout is torch.strided:
        return item.nbytes
    return (values_of(item) if item.layout is torch.sparse_coo else item.values()).nbytes
