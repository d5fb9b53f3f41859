"""Messages that get lost or delayed on purpose, named as the incumbent names its own.

The incumbent has separate messages for functions in Python and for operators; here one message
serves both, so either name means it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from lockstitch.errors import RpcTimeoutError
from lockstitch.wire.messages import (
    Call,
    ChildAccept,
    Fetch,
    ForkRequest,
    ForksDeleted,
    Gradient,
    Message,
    ReleaseContext,
    RemoteCall,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lockstitch.ids import WorkerId

MESSAGES: Final[dict[str, type[Message]]] = {
    "PYTHON_CALL": Call,
    "SCRIPT_CALL": Call,
    "PYTHON_REMOTE_CALL": RemoteCall,
    "SCRIPT_REMOTE_CALL": RemoteCall,
    "PYTHON_RREF_FETCH_CALL": Fetch,
    "SCRIPT_RREF_FETCH_CALL": Fetch,
    "RREF_FORK_REQUEST": ForkRequest,
    "RREF_CHILD_ACCEPT": ChildAccept,
    "RREF_USER_DELETE": ForksDeleted,
    "CLEANUP_AUTOGRAD_CONTEXT_REQ": ReleaseContext,
    "BACKWARD_AUTOGRAD_REQ": Gradient,
}

_NEVER_REPEATED: Final = (Call, RemoteCall, Fetch, Gradient)


class MessageLostError(RpcTimeoutError, ConnectionError):
    """A message was lost on purpose. That would end in a timeout, for which nobody needs to
    wait."""


class Mishaps:
    """A `SendFilter` that loses and delays messages. Each message of the kinds `to_fail` is lost
    `times` times; `to_delay` gives seconds by kind. What is never sent again fails at once where it
    is lost; other messages are lost in silence, and their sender has to send them again.

    `call_later(seconds, task)` is the agent's. Raises `ValueError` for unknown kinds.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], None],
        to_fail: Iterable[str],
        to_delay: Mapping[str, float],
        times: int,
    ) -> None:
        self._call_later = call_later
        self._to_fail = frozenset(map(_message, to_fail))
        self._delays: dict[type[Message], float] = {}
        for name, seconds in to_delay.items():
            cls = _message(name)
            self._delays[cls] = max(seconds, self._delays.get(cls, 0.0))
        self._times = times
        self._lock = threading.Lock()
        self._lost: Counter[tuple[WorkerId, Message]] = Counter()

    def __call__(self, to: WorkerId, message: Message, send: Callable[[Message], None]) -> None:
        cls = type(message)
        if cls in self._to_fail and self._loses(to, message):
            if cls in _NEVER_REPEATED:
                raise MessageLostError(f"a {cls.__name__} to {to} was lost on purpose")
            return
        delay = self._delays.get(cls)
        if delay is None:
            send(message)
        else:
            self._call_later(delay, lambda: _send_late(send, message))

    def _loses(self, to: WorkerId, message: Message) -> bool:
        if isinstance(message, _NEVER_REPEATED):
            return self._times > 0  # each of them is sent for the first time
        with self._lock:
            self._lost[to, message] += 1
            return self._lost[to, message] <= self._times


def _send_late(send: Callable[[Message], None], message: Message) -> None:
    with contextlib.suppress(ConnectionError):  # the receiver may have left meanwhile
        send(message)


def _message(name: str) -> type[Message]:
    cls = MESSAGES.get(name)
    if cls is None:
        raise ValueError(f"there is no message {name!r}; there are {', '.join(MESSAGES)}")
    return cls
