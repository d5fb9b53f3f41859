"""A slot that is a forked process: no lock of the interpreter is shared, so operators of any size
run at once.

The fork has the module as it is. Its trainable parameters are moved into shared memory before
(`shared_leaves.py`), all else is its own and is told of changes. Messages and their tensors go
through shared memory too (`memory.mailbox`, `messages.py`, `memory.py`).

What takes less than a message there and back is not sent: a pass that the child has found to be
short is run by the caller, as with threads (`own_passes.py`), if all that the module keeps is in
plain sight. Objects of the program's own, in which a module may keep something from one call to the
next, are each process's for itself, and stay so.

The parent hanging up is the child's end, and the other way round a closed socket means that the
child is dead. It is killed without ceremony: all that it has belongs to the parent.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import warnings
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstitch.attach.presence import PRESENCE
from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.sources import SOURCES
from lockstitch.attach.threads import frames_of
from lockstitch.attach.values import OtherWait
from lockstitch.errors import SlotDiedError
from lockstitch.forks import abandon_in_child
from lockstitch.memory.mailbox import Mailbox, create_memory, spin_seconds_for
from lockstitch.memory.mapping import create_file
from lockstitch.memory.waiting import WorkEstimate
from lockstitch.nn.slots.answers import (
    BACKWARD,
    COLLECT,
    FORWARD,
    Answers,
    record_key,
    work_in_words,
)
from lockstitch.nn.slots.base import Gradients, Outcome, Slot, SlotStatistics, is_short
from lockstitch.nn.slots.child import run_child
from lockstitch.nn.slots.failures import Failure
from lockstitch.nn.slots.forkable import obstacle
from lockstitch.nn.slots.lifting import SINGLE
from lockstitch.nn.slots.memory import NAME, OwnedMemory, ReadMemory
from lockstitch.nn.slots.messages import Leaves, MessageCodec
from lockstitch.nn.slots.module_changes import tensors_held_by
from lockstitch.nn.slots.own_passes import OwnPasses
from lockstitch.nn.slots.request_packing import Packer
from lockstitch.nn.slots.shared_leaves import forking_a_slot, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lockstitch.attach.values import Question
    from lockstitch.nn.slots.answers import Key
    from lockstitch.nn.slots.base import BackwardRequest, Blueprint, OwnPass, Request


class ForkSlot(Slot):
    """Slot number `number`, in a process of its own.

    Raises `RuntimeError` where this process cannot be forked (`forkable.py`).
    """

    def __init__(self, number: int, blueprint: Blueprint) -> None:
        reason = obstacle()
        if reason is not None:
            raise RuntimeError(f'{reason}; use slots that are threads, device_ids=["thread", …]')
        module = blueprint.module
        held = tensors_held_by(module.modules())
        others = itertools.chain(module.parameters(), module.buffers(), held)
        self.statistics = SlotStatistics(parameter_bytes=share(blueprint.leaves, others))
        self._number = number
        self._module = weakref.ref(module)
        self._estimates = {kind: WorkEstimate() for kind in (FORWARD, BACKWARD)}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rings, spin_seconds = create_memory(), spin_seconds_for(blueprint.slots)
        to_child, to_parent, crash_file = create_file(NAME), create_file(NAME), create_file(NAME)
        leaves = Leaves(blueprint.leaves)
        codec = MessageCodec(OwnedMemory(to_child), ReadMemory(to_parent), leaves)
        childs_codec = MessageCodec(OwnedMemory(to_parent), ReadMemory(to_child), leaves)
        title = f"slot {number}"
        pid = _fork()
        if not pid:
            try:
                ours.close()
                name = f"{title} (process {os.getpid()})"
                mailbox = Mailbox(rings, 1, theirs, spin_seconds)
                run_child(blueprint, mailbox, childs_codec, name, crash_file)
            finally:
                os._exit(0)
        theirs.close()
        self.name = f"{title} (process {pid})"
        self._mailbox = Mailbox(rings, 0, ours, spin_seconds)
        self._codec = codec
        self._packer = Packer()
        self._own_passes = OwnPasses(self.name)
        # Without a cycle of references, so that a slot ends when nobody wants it any more.
        receive_one = weakref.WeakMethod(self._receive)
        self._answers = Answers(lambda kind: receive_one()(kind))  # type: ignore[misc]
        self._released: deque[int] = deque()
        self._process = _ChildProcess(pid, ours, [to_child, to_parent, crash_file])
        self._finalizer = weakref.finalize(self, self._process.end)
        self._collects = 0

    def own_pass(
        self, state: int, leaves: Sequence[torch.Tensor], *, fills_unused: bool
    ) -> OwnPass | None:
        if not self._own_passes.are_possible() or not self.is_alive:
            return None
        if not all(map(is_short, self._estimates.values())):
            return None
        module = self._module()
        if module is None or not self._own_passes.are_transparent(module):
            return None
        self._own_passes.prepare(module, leaves, fills_unused=fills_unused)
        self.statistics.passes += 1
        return self._own_passes.timed(self._estimates[FORWARD], state, self._number)

    def start(self, request: Request) -> None:
        if request.changes:
            self._own_passes.disturb()
        self.statistics.passes += request.vjp_of is None
        content, tensors = self._packer.pack(request)
        self.statistics.other_bytes += request.changes.nbytes
        self._send((FORWARD, request.number), content, tensors)

    def finish(self, number: int) -> Outcome:
        (skeletons, requires_grad, written, seconds), tensors, _ = self._wait((FORWARD, number))
        self._learn(FORWARD, seconds)
        skeleton = skeletons[0] if skeletons else SINGLE
        return Outcome(skeleton, tensors, requires_grad, written)

    def start_backward(self, request: BackwardRequest) -> None:
        keeps = request.keeps_graph, request.keeps_gradients
        self._send((BACKWARD, request.number), keeps, request.gradients)

    def finish_backward(self, number: int) -> Gradients:
        seconds, inputs, leaves = self._wait((BACKWARD, number))
        self._learn(BACKWARD, seconds)
        return Gradients(inputs, leaves or ())

    def _learn(self, kind: int, seconds: float | None) -> None:
        if seconds is not None:
            self._estimates[kind].learn(seconds)

    def collect(self) -> Sequence[torch.Tensor | None]:
        self._collects += 1
        key = (COLLECT, self._collects)
        self._send(key, None, ())
        return self._wait(key)[2] or ()

    def release(self, number: int) -> None:
        self._answers.release(number)
        self._released.append(number)

    @property
    def is_alive(self) -> bool:
        return self._process.is_running

    def close(self) -> None:
        self._finalizer()

    def _send(self, key: Key, content: Any, tensors: Sequence[torch.Tensor | None]) -> None:
        if not self.is_alive:
            raise SlotDiedError(self.name, self._process.end_described)
        self._drain()
        released = []
        while self._released:
            released.append(self._released.popleft())
        begun = RECORDER.begin()
        message = self._codec.encode(key, (released, content), tensors)
        self._answers.expect(key)
        if not self._mailbox.send(message, self._drain):
            raise self._died()
        if begun:
            RECORDER.end(begun, "request", f"to {self.name}", "", *record_key(self.name, key))

    def _drain(self) -> None:
        self._answers.drain(self._mailbox.has_message)

    def _wait(self, key: Key) -> Any:
        if not self._answers.is_expected(key):
            raise SlotDiedError(self.name, self._process.end_described)
        try:
            message = self._answers.wait(key)
        except Exception:
            raise
        except BaseException:
            # Interrupted, perhaps between receiving and keeping: what the slot has said is lost.
            self.close()
            raise
        body, tensors, leaves = self._codec.decode(message)
        if isinstance(body, Failure):
            raise body.error()
        return body, tensors, leaves

    def _receive(self, kind: int) -> tuple[Key, bytes]:
        message = self._mailbox.receive(kind) if self.is_alive else None
        if message is None:
            raise self._died()
        return self._codec.key(message), message

    def _died(self) -> SlotDiedError:
        self.close()
        return SlotDiedError(self.name, self._process.end_described)


def _awaited(_question: Question) -> list[OtherWait]:
    """The slots for which threads of this process wait: read off their stacks."""
    waits = []
    for innermost in sys._current_frames().values():
        for frame in frames_of(innermost):
            if frame.f_code is ForkSlot._wait.__code__:
                told = frame.f_locals
                name, key = told["self"].name, told["key"]
                waits.append(OtherWait(f"waits for {work_in_words(key, name)}", (name,)))
                break
    return waits


SOURCES.waits.append(_awaited)


def _fork() -> int:
    """Forks; what is still to be printed is printed once."""
    sys.stdout.flush()
    sys.stderr.flush()
    PRESENCE.show()  # the child is found as one of this process
    with forking_a_slot(), warnings.catch_warnings():
        # Newer Pythons warn of threads: the child's are its own (`child.py`).
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class _ChildProcess:
    """The process, and what belongs to it in the parent."""

    def __init__(self, pid: int, connection: socket.socket, files: list[int]) -> None:
        self._pid = pid
        self._connection = connection
        self._files = files
        self.is_running = True
        self.end_described = "it has been closed"
        abandon_in_child(self)

    def end(self) -> None:
        """Ends the process, waits for it, and says how it ended."""
        if not self.is_running:
            return
        self.is_running = False
        # If it has died by itself this changes nothing: how is kept until somebody waits for it.
        self._connection.close()
        os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        PRESENCE.forget_child(self._pid)
        self.end_described = _description_of(status) + _crash_report(self._files[-1])
        self._close_files()

    def abandon(self) -> None:
        """Called in a forked child: the slot is its parent's."""
        if self.is_running:
            self.is_running = False
            self.end_described = "it belongs to the process that this one was forked from"
            self._connection.close()
            self._close_files()

    def _close_files(self) -> None:
        for descriptor in self._files:
            os.close(descriptor)
        self._files = []


def _description_of(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its process was ended by signal {number} ({signal.Signals(number).name})"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"


def _crash_report(descriptor: int) -> str:
    """What the process wrote as it crashed."""
    text = Path(f"/proc/self/fd/{descriptor}").read_text(errors="replace").strip()
    return f"\n{text}" if text else ""
