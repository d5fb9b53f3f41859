"""A post office in one process: workers whose messages are encoded, delayed and reordered at will.

It stands in for the runtime: `PostOffice(3)` makes three workers with distributed autograd, and
`call` does what a remote call does to autograd: arguments and results cross by the interceptors.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from lockstitch.autograd.context import set_current_context
from lockstitch.autograd.service import AutogradService
from lockstitch.errors import PeerDiedError
from lockstitch.ids import WorkerId
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode

JOIN_SECONDS = 60


def leaf():
    """A leaf of three ones, in double precision."""
    return torch.ones(3, dtype=torch.float64, requires_grad=True)


class Clerk:
    """One worker's counter in the post office: its agent, as far as autograd needs one."""

    allowed = None

    def __init__(self, office, worker):
        self._office = office
        self.id = worker
        self.handlers = {}
        self.lost_callbacks = []
        self.close_callbacks = []
        self.interceptor = None
        self.sent = []

    def send(self, to, message):
        if to in self._office.dead:
            raise PeerDiedError(f"worker{to.rank}")
        self.sent.append(message)
        if self._office.dropped(to, message):
            return
        message = carry(message)
        if to == self.id:
            self._office.deliver(to, self.id, message)
        else:
            self._office.post(to, self.id, message)

    def listen(self, to):
        return None

    def send_back(self, to, message):
        self.send(to, message)

    def handle(self, cls, handler):
        self.handlers[cls] = handler

    def spawn(self, task):
        self._office.spawn(task)

    def blocked(self):
        return contextlib.nullcontext()

    def add_concern(self, workers) -> None:
        self.concern = workers

    def on_connection_lost(self, callback) -> None:
        self.breakage = callback

    def on_peer_lost(self, callback):
        self.lost_callbacks.append(callback)

    def call_later(self, seconds, task):
        self._office.timers.append((seconds, task))

    def on_close(self, callback):
        self.close_callbacks.append(callback)


class Participant:
    """A worker of the post office."""

    def __init__(self, office, rank):
        self.id = WorkerId(rank, 0)
        self.name = f"worker{rank}"
        self.clock = office.clock
        self.agent = Clerk(office, self.id)
        self.autograd = AutogradService(self)

    def active(self):
        return contextlib.nullcontext()


class PostOffice:
    """A context manager. `seed` reorders: each message takes up to `delay_seconds`, at random;
    without one, messages arrive in order and at once."""

    def __init__(self, size, seed=None, delay_seconds=0.002):
        self._random = None if seed is None else random.Random(seed)
        self._delay = delay_seconds
        self._queue = []
        self._serial = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self.errors = []
        self.timers = []
        self.dead = set()
        self.dropped = lambda to, message: False
        self.clock = ManualClock()
        self._pool = ThreadPoolExecutor(64, thread_name_prefix="post-office")
        self.workers = [Participant(self, rank) for rank in range(size)]
        self._carrier = threading.Thread(target=self._carry, name="post-office-carrier")

    def __enter__(self):
        self._carrier.start()
        return self

    def __exit__(self, *_exception):
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._carrier.join(JOIN_SECONDS)
        self._pool.shutdown()
        if self.errors:
            raise self.errors[0]

    def __getitem__(self, rank):
        return self.workers[rank]

    def post(self, to, sender, message):
        delay = 0.0 if self._random is None else self._random.random() ** 3 * self._delay
        with self._changed:
            due = time.monotonic() + delay
            heapq.heappush(self._queue, (due, next(self._serial), to, sender, message))
            self._changed.notify_all()

    def _carry(self):
        while True:
            with self._changed:
                while not self._queue:
                    if self._closed:
                        return
                    self._changed.wait()
                wait = self._queue[0][0] - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                _, _, to, sender, message = heapq.heappop(self._queue)
                self._running += 1
            self._run(partial(self.deliver, to, sender, message))

    def deliver(self, to, sender, message):
        if to in self.dead:
            return
        self._guard(lambda: self[to.rank].agent.handlers[type(message)](sender, message))

    def spawn(self, task):
        with self._changed:
            self._running += 1
        self._pool.submit(self._run, task)

    def _run(self, task):
        self._guard(task)
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def let_time_pass(self, seconds):
        """The timers that are set go off, `seconds` later."""
        self.clock.advance(seconds)
        timers, self.timers = self.timers, []
        for _, task in timers:
            task()

    def wait_until_quiet(self):
        """Until nothing is on its way and nothing runs."""
        with self._changed:
            assert self._changed.wait_for(lambda: not (self._queue or self._running), JOIN_SECONDS)

    def _guard(self, task):
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised when the office closes
            self.errors.append(error)

    def kill(self, rank):
        """The worker is gone; the others hear of it."""
        gone = self[rank].id
        self.dead.add(gone)
        for callback in self[rank].agent.close_callbacks:
            callback()
        for worker in self.workers:
            if worker.id not in self.dead:
                for callback in worker.agent.lost_callbacks:
                    self.spawn(
                        lambda callback=callback: callback(gone, PeerDiedError(f"worker{rank}"))
                    )


def carry(message):
    """What a message is like after it crossed the wire."""
    decoder = FrameDecoder()
    for buffer in encode(message):
        decoder.feed(buffer)
    return decoder.messages.popleft()


def transfer(source, target, tensors):
    """Tensors of `source` as they arrive at `target`, and the stitch that came with them."""
    stitch = source.agent.interceptor.outgoing(target.id, tensors)
    items = [tensor.detach().clone() for tensor in tensors]
    if stitch is None:
        return items, None
    # Tensors outside of the stitch keep their flag, as on the wire.
    for index, (item, tensor) in enumerate(zip(items, tensors, strict=True)):
        if tensor.requires_grad and index not in stitch.tensors:
            item.requires_grad_()
    target.agent.interceptor.incoming(source.id, stitch, items)
    return items, stitch


def call(caller, callee, function, *tensors, in_thread=False):
    """`function(*tensors)` on `callee`, called by `caller`; returns a list of tensors."""
    arguments, stitch = transfer(caller, callee, list(tensors))
    results = []

    def serve():
        scope = (
            contextlib.nullcontext() if stitch is None else callee.agent.interceptor.scope(stitch)
        )
        with scope:
            value = function(*arguments)
            value = [value] if isinstance(value, torch.Tensor) else list(value)
            results.append(transfer(callee, caller, value))

    if in_thread:
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join(JOIN_SECONDS)
    else:
        serve()
    return results[0][0]


@contextlib.contextmanager
def context_on(worker):
    """`with context() as context_id`, on one worker of the post office."""
    context = worker.autograd.new_context()
    try:
        yield context
    finally:
        set_current_context(None)
        if not context.is_released:
            worker.autograd.release_context(context.id)


def gradients_on(worker, context_id):
    """The context's gradients on a worker that may not have heard of it."""
    known = {context.id: context for context in worker.autograd.contexts}
    return known[context_id].gradients if context_id in known else {}


def double(tensor):
    return tensor * 2


def forward(office, x):
    """A loss whose pass blocks at the initiator: h is used here and there."""
    h = x.sin()
    (y,) = call(office[0], office[1], double, h)
    return (y * h).sum()
