"""How a worker makes calls and other requests, and waits for their answers (`answers`).

call ─► Pending ─► Channel.request …  Channel.deliver ─► result, in the thread that waits
└► Completion, where none does

The caller may be in any mode of torch. Values cross in plain modes (`lockstitch.modes`): tensors
are read and made here as they would be by a thread of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from lockstitch.attach.recorder import RECORDER
from lockstitch.clock import UNSET_TIMEOUT
from lockstitch.errors import RpcTimeoutError
from lockstitch.interrupts import elsewhere, if_free
from lockstitch.modes import are_plain, in_plain_modes, plain_modes
from lockstitch.runtime.answers import bytes_of
from lockstitch.runtime.functions import BY_VALUE, TO_HERE, CallEstimate, name_of
from lockstitch.runtime.inherited import INHERITED, refuse_to_block
from lockstitch.runtime.observing import note_sent
from lockstitch.runtime.packing import item_bytes
from lockstitch.runtime.pending import Future, Pending
from lockstitch.wire.messages import Call, Message, Payload, Reply, SharedPayload
from lockstitch.wire.pickling import pack_arguments

if TYPE_CHECKING:
    from lockstitch.attach.recorder import Noted
    from lockstitch.ids import WorkerId
    from lockstitch.memory.host_copies import HostCopies
    from lockstitch.runtime.answers import Answers
    from lockstitch.runtime.channel import Channel
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.packing import Values, WhatToCall
    from lockstitch.runtime.peers import Peers
    from lockstitch.runtime.pending import Completion
    from lockstitch.wire.messages import Stitch

T = TypeVar("T")

MakeCall = Callable[[int, int, "bytes | None", "float | None", "Stitch | None", Payload], Message]
"""Builds a request from its number, the function's number and definition, the timeout that travels,
the stitch and the body."""

_is_grad_enabled: Final = torch.is_grad_enabled
# Every so many calls it is seen to what is to be done before calls.
_CALLS_BETWEEN: Final = 8


def to_several(copies: HostCopies, make: MakeCall = Call) -> MakeCall:
    """Has `make` build a request one of several that bring the same: what is large in them is
    copied once for each host. Nobody may change it before all of them are made."""

    def build(
        request: int,
        function: int,
        definition: bytes | None,
        timeout: float | None,
        stitch: Stitch | None,
        body: Payload,
    ) -> Message:
        shared = SharedPayload(*body)
        shared.copies = copies
        return make(request, function, definition, timeout, stitch, shared)

    return build


class Outgoing:
    """See the module."""

    def __init__(self, core: Core, values: Values, peers: Peers, answers: Answers) -> None:
        self.default_timeout = core.options.default_timeout
        self.before_call: Callable[[], None] | None = None
        """For what should be told before long, but need not be told at once. It must be short."""
        self._core = core
        self._now = core.now
        self._values = values
        self._peers = peers
        self._result = answers.result
        self._fail_pending = answers.fail_pending

    def tell_calls(self, tell: Callable[[str, object], None]) -> None:
        """Has `tell` hear of each call from now on: the callee's name, and the function."""
        send_call = self._send_call

        def telling(channel: Channel, pending: Pending, function: Any, *rest: Any) -> None:
            tell(channel.peer.name, function)
            send_call(channel, pending, function, *rest)

        self._send_call = telling  # type: ignore[assignment, method-assign]

    def call(
        self,
        to: WorkerId,
        function: Callable[..., T],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: float = UNSET_TIMEOUT,
    ) -> T:
        """Runs `function(*args, **kwargs)` on a worker and returns its value; see `rpc_sync`."""
        if not are_plain():
            with plain_modes():
                return self.call(to, function, args, kwargs, timeout)
        pending = self._pending(timeout, None)
        channel = self._peers.channel(to, pending)
        try:
            self._send_call(channel, pending, function, args, kwargs)
            value: T = self._await(channel, pending)
        except BaseException as error:
            try:
                self._give_up(channel, pending, error)
            except BaseException:  # an interrupt
                elsewhere(self._give_up, (channel, pending, error))
                raise
            raise
        return value

    def call_async(
        self,
        to: WorkerId,
        function: Callable[..., T],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: float = UNSET_TIMEOUT,
    ) -> Future[T]:
        """Like `call`, at once; see `rpc_async`."""
        future: Future[T] = Future()
        self.call_into(future, to, (function, args, kwargs), timeout)
        return future

    def call_into(
        self,
        completion: Completion,
        to: WorkerId,
        call: WhatToCall,
        timeout: float = UNSET_TIMEOUT,
        make: MakeCall = Call,
    ) -> None:
        """Like `call_async`, for an answer that completes `completion`. `make` may build another
        request with a call's fields; see also `to_several`."""
        if not are_plain():
            with plain_modes():
                return self.call_into(completion, to, call, timeout, make)
        pending = self._pending(timeout, completion)

        def send(channel: Channel) -> None:
            self._send_call(channel, pending, *call, make)

        self._begin(to, pending, completion, send)

    @in_plain_modes
    def ask(
        self,
        to: WorkerId,
        build: Callable[[int, float | None], Message],
        timeout: float = UNSET_TIMEOUT,
    ) -> Any:
        """`request` of a reference's value, and waits for the answer."""
        pending = self._pending(timeout, None)
        pending.what = TO_HERE
        channel = self._peers.channel(to, pending)
        if channel.is_behind:
            channel.wait_for_turn(pending)
        try:
            channel.request(pending, build)
            return self._await(channel, pending)
        except BaseException as error:
            try:
                self._give_up(channel, pending, error)
            except BaseException:  # an interrupt
                elsewhere(self._give_up, (channel, pending, error))
                raise
            raise

    def _give_up(self, channel: Channel, pending: Pending, error: BaseException) -> None:
        """A call has ended in `error`, perhaps at an interrupt. What its making has begun is taken
        back where it cannot have left (else `request` has seen to it), and what its answer carries
        is given back, be it there or still to come. A future that nobody has got may keep `pending`
        until the collector comes; what was lent is not kept so long. Harmless when repeated."""
        if not pending.number:
            pending.take_back(error)
        else:
            channel.abandon(pending.number)
            answer = pending.answer
            if type(answer) is Reply:
                self._values.discard(answer.body, channel.peer.worker)
        pending.kept = None

    def _await(self, channel: Channel, pending: Pending) -> Any:
        if RECORDER.is_on:
            return self._await_noting(channel, pending)
        channel.wait(pending)
        return self._result(pending, channel.peer.worker)

    def _await_noting(self, channel: Channel, pending: Pending) -> Any:
        """`await`, noted for who looks on."""
        channel.wait(pending)
        number = pending.number
        has_failed, received = True, bytes_of(pending.answer)  # before its tensors are taken out
        try:
            value = self._result(pending, channel.peer.worker)
            has_failed = False
            return value
        finally:
            end, since, sent, estimate = self._now(), pending.since, pending.sent, pending.estimate
            noted = estimate.noted if type(estimate) is CallEstimate else None
            if noted is None:
                noted = self._noted(channel, pending)
            RECORDER.note_call(noted, since, end, number, 0.0, sent, received, has_failed)

    def _noted(self, channel: Channel, pending: Pending) -> Noted:
        name, peer = name_of(pending.what), channel.peer.name
        noted = RECORDER.noted("call", name, self._core.info.name, peer)
        if type(pending.estimate) is CallEstimate:
            pending.estimate.noted = noted
        return noted

    @in_plain_modes
    def request(
        self,
        to: WorkerId,
        build: Callable[[int, float | None], Message],
        timeout: float = UNSET_TIMEOUT,
    ) -> Future[Any]:
        """Sends the request that `build(number, timeout that travels)` makes; its answer completes
        the future."""
        future: Future[Any] = Future()
        pending = self._pending(timeout, future)

        def send(channel: Channel) -> None:
            if channel.is_behind:
                channel.wait_for_turn(pending)
            channel.request(pending, build)

        self._begin(to, pending, future, send)
        return future

    def _begin(
        self,
        to: WorkerId,
        pending: Pending,
        completion: Completion,
        send: Callable[[Channel], None],
    ) -> None:
        """Sends a request whose answer completes `completion`. What cannot be packed raises here;
        what cannot be sent fails it, as if it had been lost a moment later."""
        channel: Channel | None = None
        try:
            channel = self._peers.channel(to, pending)
            completion.attach(channel, pending)
            pending.peer = channel.peer.name
            send(channel)
            if RECORDER.is_on:
                note_sent(self._core, pending)
            channel.expect_answers()
        except (ConnectionError, RpcTimeoutError) as error:
            if not pending.done:
                self._fail_pending(pending, error)
        except BaseException as error:
            if channel is not None:
                try:
                    self._give_up(channel, pending, error)
                except BaseException:  # an interrupt
                    elsewhere(self._give_up, (channel, pending, error))
                    raise
            raise

    def _pending(self, timeout: float, future: Completion | None) -> Pending:
        try:
            given = timeout if timeout > 0 else None
        except TypeError:
            raise TypeError(f"timeout is a number of seconds, not {timeout!r}") from None
        if future is None and INHERITED.loop_of is not None:
            refuse_to_block("waiting for an answer")
        seconds = given if timeout >= 0 else (self.default_timeout or None)
        inherited = INHERITED.deadline
        now = self._now()
        if seconds is None and inherited is None:
            pending = Pending(None, None, future, now)
        else:
            if inherited is not None and (seconds is None or inherited - now < seconds):
                seconds = given = max(inherited - now, 0.0)
            assert seconds is not None
            pending = Pending(now + seconds, seconds, future, now, given)
        if not _is_grad_enabled():
            pending.records = False
        return pending

    def _send_call(
        self,
        channel: Channel,
        pending: Pending,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        make: MakeCall = Call,
    ) -> None:
        pending.what = function
        if not channel.is_free:
            channel.wait_for_turn(pending)
            channel.wait_for_fewer(pending)
        if self.before_call is not None and channel.requested % _CALLS_BETWEEN == 0:
            self.before_call()
        functions, values = channel.functions, self._values
        try:
            pending.estimate = known = functions.sent.get(function)
        except TypeError:  # see `define`
            known = None
        number, definition = functions.define(function) if known is None else (known.number, None)
        leaf_ids: Collection[int] = ()
        try:
            body = None if kwargs or number == BY_VALUE else pack_arguments(args)
            if body is None:
                kept: list[object] = []
                pending.kept = kept
                call = (function, args, kwargs)
                body, leaf_ids = values.pack_call(call, number, channel.peer.worker, kept)
                if not kept:
                    pending.kept = None
        except Exception as error:
            refusal = values.refusal_of_call(error, (function, args, kwargs), channel.peer.name)
            if refusal is error:
                raise
            raise refusal from refusal.__cause__
        if body.items:
            _weigh(pending, body, channel)
        elif RECORDER.is_on:
            pending.sent = len(body.stream)
        interceptor, stitch = values.interceptor, None
        if interceptor is not None and interceptor.is_active():
            stitch = values.stitch(channel.peer.worker, body.items, leaf_ids)
        if definition is None:
            channel.request(
                pending,
                lambda request, travels: make(request, number, None, travels, stitch, body),
            )
            return
        self._send_definition(
            channel,
            pending,
            function,
            definition,
            lambda request, number, definition, travels: make(
                request, number, definition, travels, stitch, body
            ),
        )

    def _send_definition(
        self,
        channel: Channel,
        pending: Pending,
        function: Callable[..., Any],
        definition: bytes,
        make: Callable[[int, int, bytes | None, float | None], Message],
    ) -> None:
        """Sends a call whose function the callee does not know by a number yet."""
        functions = channel.functions

        def send(number: int, spelt: bytes | None) -> None:
            build = lambda request, travels: make(request, number, spelt, travels)  # noqa: E731
            channel.request(pending, build)

        def define() -> None:
            number, spelt = functions.define(function)
            send(number, spelt)
            functions.mark_sent(function, number)

        # The definition must leave before any use of its number. Where another is about to leave,
        # which may take long, it goes without one.
        if not if_free(functions.defining, define):
            send(-1, definition)


def _weigh(pending: Pending, body: Payload, channel: Channel) -> None:
    """Notes how much a request brings, as far as somebody wants to know."""
    nbytes = sum(map(item_bytes, body.items))
    if nbytes > channel.flow_control.least:
        pending.nbytes = nbytes
    if RECORDER.is_on:
        pending.sent = nbytes + len(body.stream)
