"""A socket of this process, at which this user's commands ask it what it does.

One question to a connection, one answer, both as JSON. The thread that waits for questions sleeps
in the kernel and costs nothing; each is answered on a thread of its own, so that one answer that
takes long holds up no other. Who connects is told by the kernel: anybody but this user and root is
sent away without a word.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Final

from lockstitch.attach.values import Question
from lockstitch.errors import RemoteProtocolError
from lockstitch.forks import abandon_in_child
from lockstitch.link.codec import Codec
from lockstitch.link.sockets import SHORTAGES, peer_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.attach.folder import Entry

_OF_FAULTS: Final = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT
}  # fmt: skip
_WAITING: Final = 64
_LONGEST_QUESTION: Final = 1 << 16
_QUESTION_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 10.0
_ROOT: Final = 0
_PASSING: Final = SHORTAGES | {errno.ECONNABORTED}
"""What keeps this process from answering only for now."""
_PAUSE_SECONDS: Final = 0.1
_LENT: Final = b"."
"""What a descriptor comes with, since it cannot come alone."""
QUESTIONS: Final = Codec(Question, complaint="this is no question", by_name=True)


class Endpoint:
    """See the module. Open from the start; `answer(question)` gives the bytes of the answer, and
    `lend()` the descriptor that is lent to who asks for it, -1 without one. Raises `OSError` where
    there can be no socket at the entry's place."""

    def __init__(
        self,
        entry: Entry,
        answer: Callable[[Question], bytes],
        lend: Callable[[], int] = lambda: -1,
    ) -> None:
        self._entry = entry
        self._answer = answer
        self._lend = lend
        self._is_closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(entry.fresh_address))
            self._listener.listen(_WAITING)
            entry.fresh_address.replace(entry.address)
        except BaseException:
            self._listener.close()
            raise
        abandon_in_child(self)

    def __repr__(self) -> str:
        return f"<Endpoint {self._entry.address}>"

    def fileno(self) -> int:
        """The descriptor at which questions arrive."""
        return self._listener.fileno()

    def serve(self) -> None:
        """Answers questions, on threads of its own, until the process ends. None of them takes a
        signal, since that would not wake the main thread, to which the program's signals belong."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OF_FAULTS)
        try:
            _thread.start_new_thread(self._serve, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def take(self) -> None:
        """Answers a question that waits, in this thread."""
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            self._talk(connection)

    def close(self) -> None:
        """Answers no more, and is found no more; harmless when repeated."""
        self._is_closed.set()
        self._entry.remove()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
        self._listener.close()

    def abandon(self) -> None:
        """A forked child lets go of the socket; the entry is its parent's."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in _PASSING or self._is_closed.wait(_PAUSE_SECONDS):
                    return
                continue
            try:
                _thread.start_new_thread(self._talk, (connection,))
            except RuntimeError:  # there can be no more threads
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        # Whatever is wrong with the other end is its own affair.
        with connection, contextlib.suppress(OSError, RemoteProtocolError):
            if peer_credentials(connection)[1] not in (os.geteuid(), _ROOT):
                return
            connection.settimeout(_QUESTION_SECONDS)
            question = QUESTIONS.decode(_read(connection))
            if question.lends:
                if (descriptor := self._lend()) >= 0:
                    socket.send_fds(connection, [_LENT], [descriptor])
                return
            answer = self._answer(question)
            connection.settimeout(_ANSWER_SECONDS)
            connection.sendall(answer)


def _read(connection: socket.socket) -> bytes:
    """Reads a question, which ends where the other end says no more."""
    content = b""
    while chunk := connection.recv(1 << 12):
        content += chunk
        if len(content) > _LONGEST_QUESTION:
            raise RemoteProtocolError("a question that is too long")
    return content
