"""Finds the processes of this user on this host and asks them, all at once.

Each costs one connection, one question and one answer, whatever it has to tell. Who does not answer
in time is told with its card, and with what the system says of it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstitch.attach import system
from lockstitch.attach.endpoint import QUESTIONS
from lockstitch.attach.folder import Entry, entries, folder_of
from lockstitch.attach.report import REPORTS
from lockstitch.attach.succession import remove_vacant
from lockstitch.attach.values import Silence
from lockstitch.errors import RemoteProtocolError
from lockstitch.link.sockets import peer_credentials

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lockstitch.attach.values import Card, ProcessReport, Question

_ROOT: Final = 0
_AT_ONCE: Final = 512
"""So many are asked at a time; each takes a descriptor."""
_PAUSE_SECONDS: Final = 0.01
_BEGIN_SECONDS: Final = 60.0
"""So long it may take a process at most from its first file to its socket."""
_HELD: Final = "TtF"
"""States in which a process cannot answer until somebody lets it."""
_LOOK_SECONDS: Final = 0.2
"""So often it is looked whether those that do not answer are in one of these."""
GRACE_SECONDS: Final = 0.7
"""So much longer than the question gives may an answer take: a busy process gets its turn late."""


@dataclass(slots=True)
class Answers:
    """What processes have told, by number, and those that told nothing."""

    reports: list[ProcessReport] = field(default_factory=list)
    silent: list[Silence] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    """Why nothing is known of other hosts, a sentence for each."""

    def cards(self) -> list[Card]:
        """The cards of all of them."""
        return [*(each.card for each in self.reports), *(each.card for each in self.silent)]


def own_folder() -> Path:
    """Returns where the processes of this user are listed."""
    return folder_of(os.environ, os.geteuid())


def all_entries() -> list[Entry]:
    """Returns all processes of this user on this host; none where nothing was ever listed. What
    those have left that are gone is removed. Raises `PermissionError` where the folder is not for
    this user alone."""
    folder = own_folder()
    try:
        found = list(entries(folder))
    except FileNotFoundError:
        return []
    remove_vacant(folder)
    return [entry for entry in found if _is_there(entry)]


def _is_there(entry: Entry) -> bool:
    is_known = system.born(entry.pid) == entry.born
    if entry.is_there():
        return is_known or _listens(entry)
    # It is about to begin, perhaps in another container, or has ended in the middle of that.
    if not is_known and entry.age_seconds() > _BEGIN_SECONDS:
        entry.remove()
    return False


def _listens(entry: Entry) -> bool:
    """Whether a process listens that this one does not see: one of another container, say, with
    which it shares the folder."""
    with contextlib.suppress(OSError):
        connection = entry.connect()
        if connection is not None:
            connection.close()
            return True
    return False


def ask(asked: Iterable[Entry], question: Question) -> Answers:
    """Asks processes, all at once. Those that are gone are left out."""
    return _Round(list(asked), question).answers()


class _Conversation:
    """One process that is asked."""

    def __init__(self, entry: Entry, connection: socket.socket, content: bytes) -> None:
        self.entry = entry
        self.connection = connection
        self._content = memoryview(content)
        self.answer = bytearray()
        self.why = ""
        self.is_over = False

    def say(self) -> bool:
        """Sends on; returns whether all is said."""
        try:
            self._content = self._content[self.connection.send(self._content) :]
            if self._content:
                return False
            self.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(f"it could not be asked ({error})")
        return True

    def hear(self) -> None:
        """Takes in what has come."""
        try:
            chunk = self.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"it broke off its answer ({error})")
            return
        if chunk:
            self.answer += chunk
        else:
            self._end("")

    def _end(self, why: str) -> None:
        self.why, self.is_over = why, True
        self.connection.close()


class _Round:
    """One question to many."""

    def __init__(self, asked: Sequence[Entry], question: Question) -> None:
        self._left = list(reversed(asked))
        self._content = QUESTIONS.encode(question)
        self._begun_at = time.monotonic()
        self._ends_at = self._begun_at + question.seconds + GRACE_SECONDS
        self._open: set[_Conversation] = set()
        self._answers = Answers()

    def answers(self) -> Answers:
        with selectors.DefaultSelector() as selector:
            were_held = False
            while (self._left or self._open) and time.monotonic() < self._ends_at:
                waits_for_room = self._begin(selector)
                seconds = min(_LOOK_SECONDS, self._ends_at - time.monotonic())
                if waits_for_room:
                    seconds = min(seconds, _PAUSE_SECONDS)
                ready = selector.select(max(0.0, seconds))
                for key, _ in ready:
                    self._go_on(selector, key.data)
                are_held = not (ready or self._left) and self._are_all_held()
                # Once would be too little: a debugger may look at it for a moment.
                if were_held and are_held:
                    break
                were_held = are_held
        seconds = time.monotonic() - self._begun_at
        for conversation in self._open:
            conversation.connection.close()
            self._note_silence(conversation.entry, f"it did not answer within {seconds:.1f} s")
        for entry in self._left:
            self._note_silence(entry, "it takes in no questions any more")
        self._answers.reports.sort(key=lambda each: each.card.pid)
        self._answers.silent.sort(key=lambda each: each.card.pid)
        return self._answers

    def _are_all_held(self) -> bool:
        """Whether those that have not answered cannot."""
        told = [system.look_at(each.entry.pid) for each in self._open]
        return all(each is not None and each.state in _HELD for each in told)

    def _begin(self, selector: selectors.BaseSelector) -> bool:
        """Connects to as many as may be; returns whether one has to be tried again."""
        while self._left and len(self._open) < _AT_ONCE:
            entry = self._left.pop()
            try:
                connection = entry.connect()
                if connection is None:
                    continue
                if os.geteuid() != _ROOT and peer_credentials(connection)[1] != os.geteuid():
                    connection.close()
                    continue
            except BlockingIOError:
                self._left.append(entry)
                return True
            except OSError as error:
                self._note_silence(entry, f"it could not be reached ({error})")
                continue
            conversation = _Conversation(entry, connection, self._content)
            self._open.add(conversation)
            selector.register(connection, selectors.EVENT_WRITE, conversation)
        return False

    def _go_on(self, selector: selectors.BaseSelector, conversation: _Conversation) -> None:
        key = selector.get_key(conversation.connection)
        if key.events == selectors.EVENT_WRITE:
            if conversation.say() and not conversation.is_over:
                selector.modify(conversation.connection, selectors.EVENT_READ, conversation)
        else:
            conversation.hear()
        if conversation.is_over:
            selector.unregister(key.fileobj)
            self._open.discard(conversation)
            self._conclude(conversation)

    def _conclude(self, conversation: _Conversation) -> None:
        why = conversation.why
        if not why and conversation.answer:
            try:
                self._answers.reports.append(REPORTS.decode(conversation.answer))
            except RemoteProtocolError:
                card = conversation.entry.read_card()
                version = f"Lockstitch {card.version}" if card else "another Lockstitch"
                why = f"it runs {version}, whose answers are not understood here"
            else:
                return
        self._note_silence(conversation.entry, why or "it closed the connection without an answer")

    def _note_silence(self, entry: Entry, why: str) -> None:
        card = entry.read_card()
        if card is not None:
            is_here = system.born(entry.pid) == entry.born
            told = system.look_at(entry.pid) if is_here else None
            self._answers.silent.append(Silence(card, why, told, socket.gethostname()))
