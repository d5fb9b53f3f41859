"""Who conducts a backward pass, as those see it who take part.

On the worker that called `backward` it is the `Initiator` itself; on any other, a
`RemoteInitiator`, which sends what it is told.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lockstitch.autograd.listening import Listening
from lockstitch.errors import ConnectionLostError, LockstitchError, text_of
from lockstitch.runtime import remote_errors
from lockstitch.wire.encodings import PICKLE
from lockstitch.wire.messages import BackwardFailed, NeedParts, Payload, Report
from lockstitch.wire.messages.backward import CREATE_GRAPH, FAST, RETAIN_GRAPH, SELECTS

if TYPE_CHECKING:
    from lockstitch.errors import RpcError
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.runtime.pending import Pending
    from lockstitch.runtime.worker import Worker
    from lockstitch.wire.messages import Message

Task = Callable[[], None]

LONG_WAIT_SECONDS: Final = 0.001
"""How long somebody waits for a gradient before it asks who takes part: most come sooner, and then
nobody needs to know. The question costs little, but on machines that have nothing to spare."""


class PassOptions:
    """What all workers must know of a pass: its name, and how it is run, as a sum of the flags in
    `wire.messages.backward`. Each worker makes one for each pass, and asks it often."""

    __slots__ = ("create_graph", "fast", "flags", "id", "initiator", "retain_graph", "selects")

    def __init__(self, identifier: GlobalId, flags: int) -> None:
        self.id = identifier
        self.flags = flags
        self.initiator: WorkerId = identifier.worker
        """The worker that called `backward`."""
        self.retain_graph = flags & RETAIN_GRAPH != 0
        """Whether the graph is kept for further passes."""
        self.create_graph = flags & CREATE_GRAPH != 0
        """Whether the gradients have a history themselves."""
        self.fast = flags & FAST != 0
        """Whether all that was sent is assumed to take part."""
        self.selects = flags & SELECTS != 0
        """Whether only the gradients of chosen tensors are wanted; see `narrowing`."""

    def __repr__(self) -> str:
        return f"PassOptions({self.id!r}, {self.flags})"


def flags_of(retain_graph: bool, create_graph: bool, mode: str) -> int:
    """Returns the flags of `PassOptions`."""
    return RETAIN_GRAPH * retain_graph + CREATE_GRAPH * create_graph + FAST * (mode == "fast")


class Conductor:
    """Whoever conducts a backward pass: the initiator itself, or on another worker what speaks to
    it. This one is of a pass that has ended, and does nothing."""

    is_distant = False

    def report(
        self, emitted: tuple[GlobalId, ...], consumed: tuple[GlobalId, ...], roots_ran: bool = False
    ) -> None:
        """Gradients were emitted and consumed; what the consumed ones gave to leaves is stored."""

    def need_parts(self) -> None:
        """A component waits to know which stitches take part; see `BackwardPass.learn_parts`."""

    def listens_to(self, _worker: WorkerId) -> bool:
        """Returns whether that worker, to which a gradient is about to be sent, may push its answer
        (`runtime.reply_side_push`)."""
        return False

    def sleep(self, _sleeper: Pending, *, knows_parts: bool) -> bool:  # noqa: ARG002
        """Blocks a run until the sleeper is finished; returns False when it has waited for long
        before, and may have to ask. It `knows_parts` where it has been told who takes part."""
        return True

    def waited_too_long(self) -> None:
        """Is called by a blocking run that waits in vain: asks who takes part, or whether the pass
        is stuck."""

    def send(self, worker: WorkerId, message: Message) -> None:
        """Sends a message of the pass to a worker. Raises `PeerDiedError`."""

    def answer_by_reply_push(self, worker: WorkerId) -> None:
        """That worker listens to this one."""

    def begin_to_wait(self) -> None:
        """A run begins that blocks for gradients."""

    def end_wait(self) -> None:
        """That run is over."""

    def end(self, failed: bool) -> None:
        """The pass is over here, or has failed."""

    def hand_over(self, task: Task) -> None:
        """Has the run of the loss's roots done by the thread that called `backward`."""

    def fail(self, error: BaseException) -> None:
        """The pass has failed on this worker."""


NOBODY: Final = Conductor()


class RemoteInitiator(Conductor):
    """The conductor of one pass (see `Conductor`), on a worker that only takes part."""

    is_distant = True

    def __init__(self, worker: Worker, context: int, options: PassOptions) -> None:
        self._worker = worker
        self._context = context
        self._options = options
        self._has_asked = False
        self._is_listened_to = False
        self._lock = threading.Lock()
        self._listening: Listening | None = None
        self._has_ended = False

    def report(
        self, emitted: tuple[GlobalId, ...], consumed: tuple[GlobalId, ...], roots_ran: bool = False
    ) -> None:
        """See `termination`."""
        assert not roots_ran
        self._tell(Report(self._context, self._options.id, emitted, consumed))

    def need_parts(self) -> None:
        self._has_asked = True
        self._tell(NeedParts(self._context, self._options.id))

    def listens_to(self, worker: WorkerId) -> bool:
        """Returns whether that is the initiator, once a run here waits inside: it then reads for
        itself what the initiator sends. (What others send, the thread pool reads.)"""
        listening = self._listening
        if listening is None or worker != self._options.initiator:
            return False
        try:
            return listening.begin(worker)
        except LockstitchError:  # it cannot be called from here, and need not be
            return False

    def begin_to_wait(self) -> None:
        with self._lock:
            if self._listening is None:
                listening = Listening(self._worker.agent)
                if self._has_ended:
                    listening.end(failed=False)
                self._listening = listening

    def end_wait(self) -> None:
        """The thread pool reads what the initiator pushes from now on."""
        if self._listening is not None:
            self._listening.attend()

    def end(self, failed: bool) -> None:
        with self._lock:
            self._has_ended = True
        if self._listening is not None:
            self._listening.end(failed)

    def long_wait_seconds(self, *, knows_parts: bool) -> float | None:
        """Returns how long a run waits before it asks; None: for ever. A fast pass needs no parts,
        and the initiator sees if it is stuck."""
        never_asks = knows_parts or self._has_asked or self._options.fast
        return None if never_asks else LONG_WAIT_SECONDS

    def sleep(self, sleeper: Pending, *, knows_parts: bool) -> bool:
        assert self._listening is not None
        return self._listening.sleep(sleeper, self.long_wait_seconds(knows_parts=knows_parts))

    def send(self, worker: WorkerId, message: Message) -> None:
        """Sends a message of the pass; pushes it where the initiator listens."""
        is_initiator = worker == self._options.initiator
        try:
            if self._is_listened_to and is_initiator:
                self._worker.agent.send_back(worker, message)
            else:
                self._worker.agent.send(worker, message)
        except ConnectionLostError as error:
            if is_initiator:  # who will hear of it, as one that lost its connection to this worker
                raise ConnectionLostError(self._worker.name, error.cause) from error
            raise

    def answer_by_reply_push(self, worker: WorkerId) -> None:
        assert worker == self._options.initiator
        self._is_listened_to = True

    def waited_too_long(self) -> None:
        self.need_parts()

    def hand_over(self, task: Task) -> None:
        """The loss's roots are on the initiator; never called."""
        raise AssertionError(task)

    def fail(self, error: BaseException) -> None:
        """The error crosses like that of a call."""
        described = remote_errors.describe(error, self._worker.name)
        body = Payload(PICKLE, pickle.dumps(described, 5), ())
        self._tell(BackwardFailed(self._context, self._options.id, text_of(error), body))

    def note_lost(self, error: RpcError) -> None:
        """A connection to or from the initiator has ended, and what it carried may be lost."""
        if isinstance(error, ConnectionLostError):  # else it is gone
            self.fail(ConnectionLostError(self._worker.name, error.cause))

    def _tell(self, message: Message) -> None:
        # If the initiator is gone, so is the pass.
        with contextlib.suppress(LockstitchError):
            self.send(self._options.initiator, message)
