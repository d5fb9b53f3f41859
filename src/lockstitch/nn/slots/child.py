"""The process of a forked slot: it works through messages until its parent is gone.

It works in a thread of its own. In the forked thread a parallel operator would wait for ever for
threads that its parent had used and that do not exist here.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.attach.presence import PRESENCE
from lockstitch.attach.recorder import RECORDER
from lockstitch.inquiry import INQUIRY
from lockstitch.memory.waiting import WorkEstimate
from lockstitch.nn.slots.answers import (
    BACKWARD,
    COLLECT,
    FORWARD,
    record_key,
    work_in_words,
)
from lockstitch.nn.slots.base import BackwardRequest
from lockstitch.nn.slots.execution import Executor
from lockstitch.nn.slots.failures import describe
from lockstitch.nn.slots.lifting import Hole
from lockstitch.nn.slots.nesting import mark_inside
from lockstitch.nn.slots.request_packing import Unpacker
from lockstitch.runtime.freed_memory import MOST_KEPT_BLOCK_BYTES, keep_freed_memory
from lockstitch.torch_internals.autograd import forget_hooks

if TYPE_CHECKING:
    from lockstitch.memory.mailbox import Mailbox
    from lockstitch.nn.slots.base import Blueprint
    from lockstitch.nn.slots.messages import MessageCodec


def run_child(
    blueprint: Blueprint, mailbox: Mailbox, codec: MessageCodec, name: str, crash_file: int
) -> None:
    """Does all that the process is for; returns when the parent has hung up."""
    torch.set_num_threads(1)
    signal.set_wakeup_fd(-1)
    # Ctrl-C is the parent's affair: when it ends, its slots do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    INQUIRY.install()
    faulthandler.enable(crash_file)
    PRESENCE.show_as(name)
    gc.freeze()  # nothing of the parent's is finalized here
    keep_freed_memory(MOST_KEPT_BLOCK_BYTES)
    random.seed(name)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(random.getrandbits(32))
    for leaf in [*blueprint.module.parameters(), *blueprint.module.buffers()]:
        _disarm(leaf)
    server = _Server(blueprint, mailbox, codec, name)
    thread = threading.Thread(target=server.serve, name=f"lockstitch-{name}", daemon=True)
    thread.start()
    thread.join()


def _disarm(leaf: torch.Tensor) -> None:
    """The parent's hooks see the sum of all slots' gradients, in the parent."""
    leaf.grad = None
    forget_hooks(leaf)


class _Server:
    """Answers one message after the other."""

    def __init__(
        self, blueprint: Blueprint, mailbox: Mailbox, codec: MessageCodec, name: str
    ) -> None:
        self._threads = blueprint.threads
        self._mailbox = mailbox
        self._codec = codec
        self._name = name
        self._executor = Executor(blueprint.module, blueprint.leaves)
        self._unpacker = Unpacker()
        self._estimates = {kind: WorkEstimate() for kind in (FORWARD, BACKWARD)}

    def serve(self) -> None:
        """Answers messages until the parent hangs up."""
        torch.set_num_threads(self._threads)
        mark_inside()
        kind = FORWARD
        while (message := self._mailbox.receive(kind)) is not None:
            kind, _ = self._codec.key(message)
            answer = self._answer(message)
            del message
            if not self._mailbox.send(answer):
                return
            sys.stdout.flush()

    def _answer(self, message: bytes) -> bytes:
        key, begun = self._codec.key(message), RECORDER.begin()
        try:
            answer = self._work(key, message)
            if begun:
                name = work_in_words(key, self._name)
                RECORDER.end(begun, "slot", name, "", *record_key(self._name, key))
            return answer
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent waits for it
            return self._codec.encode(key, describe(error, self._name, crosses=True))

    def _work(self, key: Any, message: bytes) -> bytes:
        what, number = key
        body, tensors, _ = self._codec.decode(message)
        released, content = body
        for each in released:
            self._executor.release(each)
        if what == FORWARD:
            request = self._unpacker.unpack(number, content, tensors)
            del tensors, content
            start = None if request.vjp_of else self._start(what)
            outcome = self._executor.forward(request)
            seconds = None if start is None else time.perf_counter() - start
            del request
            return self._codec.encode(
                key,
                (
                    () if type(outcome.skeleton) is Hole else (outcome.skeleton,),
                    outcome.requires_grad,
                    outcome.written,
                    seconds,
                ),
                outcome.tensors,
            )
        if what == BACKWARD:
            keeps_graph, keeps_gradients = content
            start = self._start(what)
            gradients = self._executor.backward(
                BackwardRequest(number, tensors, keeps_graph, keeps_gradients)
            )
            del tensors
            leaves = None if keeps_gradients else gradients.leaves
            seconds = None if start is None else time.perf_counter() - start
            return self._codec.encode(key, seconds, gradients.inputs, leaves)
        assert what == COLLECT
        sums = self._executor.collect()
        return self._codec.encode(key, None, (), sums or None)

    def _start(self, kind: int) -> float | None:
        """Returns the time at which a pass begins, if it is to be measured. (It is not time of the
        CPU: a pass that waits for something is not short.)"""
        return time.perf_counter() if self._estimates[kind].is_due() else None
