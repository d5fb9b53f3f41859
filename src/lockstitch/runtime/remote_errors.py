"""Exceptions on their way from callee to caller.

The exception itself crosses if it can be rebuilt: the caller gets its own type, with the remote
traceback as `__cause__` and a note naming the worker. What cannot be rebuilt arrives as
`RemoteError` and tells everything as text.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from lockstitch.errors import (
    LockstitchError,
    RemoteError,
    RemoteProtocolError,
    add_note,
    format_error,
    set_attribute,
    text_of,
    traceback_of,
)
from lockstitch.imports import loads
from lockstitch.interrupts import OWN_ERRORS_IGNORED, may_be_interrupt
from lockstitch.wire.unpickling import load_plain

if TYPE_CHECKING:
    from types import TracebackType

    from lockstitch.trust.registry import Registry
    from lockstitch.wire.messages import Payload


class RemoteTraceback(Exception):  # noqa: N818 - not raised: it stands as the cause of another
    """The traceback on the callee, shown as the cause of the exception that is raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


Described = tuple[str, str, str, str, "bytes | None"]
"""What crosses: worker, type, text, traceback, the pickled exception."""

_SHORT = 2000
_FRAME: Final = "\n  File "
_OURS: Final = str(Path(__file__).parents[1]) + os.sep
_CALLERS: Final = {
    (os.path.join("runtime", "invocation.py"), "_execute"),
    (os.path.join("rref", "proxy.py"), "run_method"),
    (os.path.join("nn", "api", "remote_module.py"), "_create_module"),
    (os.path.join("optim", "local.py"), "__init__"),
    (os.path.join("optim", "eager.py"), "make"),
}
"""The functions of ours, by file, that call users' functions and classes."""


def describe(error: BaseException, worker: str) -> Described:
    """What `rebuild` needs."""
    with OWN_ERRORS_IGNORED:
        pickled = None
        if isinstance(error, Exception):
            with OWN_ERRORS_IGNORED:  # whatever a __reduce__ may raise: then it goes as text
                pickled = _dumps(error)
        return worker, type(error).__qualname__, text_of(error), story_of(error), pickled
    return worker, "an exception", "(it cannot be shown)", "", None


def story_of(error: BaseException) -> str:
    """The traceback from where the user's function begins. Where that has not begun, none, if the
    error says all; else all of it, for it may be a bug of ours."""
    begin = last = traceback_of(error)
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_OURS):
        last, begin = begin, begin.tb_next
    if begin is None and not (isinstance(error, LockstitchError) or _is_call(last)):
        begin = traceback_of(error)
    return format_error(error, begin)


def _is_call(innermost: TracebackType | None) -> bool:
    """Whether an error comes from the very call of a user's function: wrong arguments, or an
    operator's."""
    if innermost is None:
        return False
    code = innermost.tb_frame.f_code
    return (code.co_filename.removeprefix(_OURS), code.co_name) in _CALLERS


def shorten(described: Described) -> Described:
    """The beginning of the text and the end of the traceback only."""
    worker, kind, message, text, _ = described
    return worker, kind, message[:_SHORT], text[-_SHORT:], None


def _dumps(error: Exception) -> bytes:
    try:
        return pickle.dumps(error, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(error, 5)  # type: ignore[no-any-return]


def rebuild(described: Described, allowed: Registry | None = None) -> BaseException:
    """The exception to raise at the caller; `allowed`: see `PicklingRegistry.allowed`."""
    worker, kind, message, text, pickled = described
    error: BaseException | None = None
    reason = ""
    if pickled is not None:
        try:
            loaded = _load(pickled, allowed)
            isinstance(loaded, LockstitchError)  # as many will ask here: it may raise, too
            error = loaded
        except BaseException as problem:  # constructors of exceptions raise anything
            if may_be_interrupt(problem):
                raise
            said = f"{type(problem).__name__}: {text_of(problem)}"
            reason = f"Exception was not rebuilt here ({said}). "
    if isinstance(error, Exception):
        if _FRAME in text:  # else there is nothing in it but the error once more
            # Python 3.10 does not print the note.
            named = text if hasattr(error, "add_note") else f"On worker {worker!r}:\n{text}"
            set_attribute(error, "__cause__", RemoteTraceback(named))
        add_note(error, f"raised on worker {worker!r}")
        return error
    return RemoteError(
        f"{reason}Original exception on remote side was {kind}: {message}\n"
        f"On worker {worker!r}:\n{text}"
    )


def from_payload(payload: Payload, allowed: Registry | None = None) -> BaseException:
    """Reads the body of a `Failure`."""
    if len(payload.items) or not payload.stream:
        raise RemoteProtocolError("the body of a failure is not readable")
    return rebuild(_load(payload.stream, allowed), allowed)


def _load(stream: bytes | memoryview, allowed: Registry | None) -> Any:
    return loads(stream) if allowed is None else load_plain(stream, allowed)
