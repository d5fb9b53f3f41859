"""Every exception that a user of Lockstitch can meet.

    LockstitchError (RuntimeError)
    ├── NotInitializedError           used before init_rpc or after shutdown
    ├── RpcError                      a call could not be made or answered
    │   ├── RpcTimeoutError           … in time                        (also TimeoutError)
    │   ├── PeerDiedError             … because a worker is gone       (also ConnectionError)
    │   │   └── PeerLeftError         … because it shut down, or its program ended
    │   ├── ConnectionLostError       … or perhaps was, before its connection broke (likewise)
    │   ├── CalledOffError            … since all shall meet, as in shutdown, and one gave up
    │   ├── CallCancelledError        … because its caller cancelled it (also CancelledError)
    │   ├── GroupError                … by some of the workers that were called as one
    │   ├── SerializationError        … because something cannot cross the wire
    │   ├── OperatorArgumentsError    … because no operator of torch takes these (also TypeError)
    │   └── RemoteError               the callee raised what cannot be rebuilt here
    ├── CallbackError                 a function given to Future.then raised something
    ├── RRefError                     a remote reference was misused
    │   └── OwnerDiedError            … its owner is gone              (also ConnectionError)
    ├── DistAutogradError             a backward pass over several workers failed
    ├── CollectiveError               a reduction over ranks failed
    │   ├── MismatchError             … because ranks submitted different things under one name
    │   ├── RankLostError             … because a rank is gone         (also ConnectionError)
    │   └── StalledError              … because ranks did not submit in time (also TimeoutError)
    ├── BoardLostError                the launcher of an elastic job is gone
    ├── PlacementError                an engine has no room for workers  (also TimeoutError)
    ├── SlotDiedError                 a slot of a DataParallel is gone   (also ConnectionError)
    ├── UnsupportedTorchError         this torch lacks what a feature stands on
    └── ProtocolError                 the two ends disagree
        ├── LocalProtocolError        our side broke the rules (a bug here)
        └── RemoteProtocolError       the peer's side did
            └── HandshakeError        … in its first words: a stranger, or another version

All derive from `RuntimeError`, so that `except RuntimeError` of a program written for
`torch.distributed.rpc` goes on working. A callee's own exception is re-raised as *itself*; these
classes are for what happens on the way.
"""

from __future__ import annotations

import sys
import traceback
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockstitch.interrupts import OWN_ERRORS_IGNORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

E = TypeVar("E", bound=BaseException)
_OF_CONNECTIONS: Final = ("DistNetworkError", "DistStoreError")
"""Types of torch's, which is not imported here."""
_WORDS_OF_CONNECTIONS: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)
"""What Gloo and NCCL say in a `RuntimeError`."""


class LockstitchError(RuntimeError):
    """Base of all errors that this library raises on its own account."""


class NotInitializedError(LockstitchError):
    """The worker was used before `init_rpc` or after `shutdown`."""


class RpcError(LockstitchError):
    """A call could not be made, or not be answered."""


class RpcTimeoutError(RpcError, TimeoutError):
    """No answer within the timeout."""


class PeerDiedError(RpcError, ConnectionError):
    """A worker is gone; `worker` names it and `cause` says how that was seen."""

    def __init__(self, worker: str, cause: str = "its connection closed") -> None:
        super().__init__(f"worker {worker!r} died: {cause}")
        self.worker = worker
        self.cause = cause

    def __reduce__(self) -> tuple[type[PeerDiedError], tuple[str, str]]:
        return type(self), (self.worker, self.cause)


class PeerLeftError(PeerDiedError):
    """A worker has shut down, or its program has come to an end without: it has said so. A
    `PeerDiedError`, since a call to it fails alike."""

    def __init__(self, worker: str, cause: str = "it has shut down, or its program ended") -> None:
        super().__init__(worker, cause)
        self.args = (f"worker {worker!r} has left: {cause}",)


class ConnectionLostError(RpcError, ConnectionError):
    """The connection broke on which an answer should have come, but `worker` lives. Its function
    may have run, or not; it was not and will not be sent again."""

    def __init__(self, worker: str, cause: str = "its connection closed") -> None:
        super().__init__(
            f"the connection to worker {worker!r} broke before the answer came ({cause}); the "
            "worker lives, and may have done what it was asked, or not"
        )
        self.worker = worker
        self.cause = cause

    def __reduce__(self) -> tuple[type[ConnectionLostError], tuple[str, str]]:
        return type(self), (self.worker, self.cause)


class CalledOffError(RpcError):
    """A meeting of all workers, as in `shutdown`, does not take place, because another worker has
    given it up; `reason` is what was raised there."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the meeting of all was called off: {reason} (this was raised on another worker, "
            "which waits no longer)"
        )
        self.reason = reason

    def __reduce__(self) -> tuple[type[CalledOffError], tuple[str]]:
        return type(self), (self.reason,)


class CallCancelledError(RpcError, CancelledError):
    """The caller has cancelled the call, by `Future.cancel` or by the cancellation of what awaited
    it. (Also a `concurrent.futures.CancelledError`.)"""


class GroupError(RpcError):
    """Some of the workers that were called as one have failed, or some items of a `map`.

    `errors`: what each has raised; `results`: what the others have returned. Both by the name of
    the worker, or by the index of the item. The first error is the `__cause__`. (The results stay
    where they are: the error of a call made by a called function arrives without them.)
    """

    def __init__(
        self,
        message: str,
        errors: Mapping[Any, Exception] | None = None,
        results: Mapping[Any, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.errors = dict(errors or {})
        self.results = dict(results or {})

    def __reduce__(self) -> tuple[type[GroupError], tuple[str, dict[Any, Exception]]]:
        return type(self), (self.args[0], self.errors)


class SerializationError(RpcError):
    """An argument, a result or a function cannot cross the wire; `reason` is what the pickler says,
    where it was asked."""

    reason = ""


class OperatorArgumentsError(RpcError, TypeError):
    """An operator of torch was called with arguments that none of its schemas takes."""


class RemoteError(RpcError):
    """The callee raised an exception that cannot be rebuilt on this side; the text tells all."""


class CallbackError(LockstitchError):
    """What a function given to `Future.then` raised that is no `RuntimeError`; that is the
    `__cause__`. (In PyTorch a `RuntimeError` with the same words, whatever was raised.)"""


class RRefError(LockstitchError):
    """A remote reference was used in a way that its state does not allow."""


class OwnerDiedError(RRefError, ConnectionError):
    """The worker that owns a reference's value is gone, and the value with it."""


class DistAutogradError(LockstitchError):
    """A backward pass over several workers failed."""


class CollectiveError(LockstitchError):
    """A collective operation over ranks failed."""


class MismatchError(CollectiveError):
    """Ranks submitted under one name what does not fit together; raised on each of them."""

    elements: Mapping[int, int] = {}
    """How many elements each rank has submitted, where they differ in nothing else and that is
    known."""


class RankLostError(CollectiveError, ConnectionError):
    """A rank died or shut down while others needed it."""

    is_farewell = False
    """Whether it shut down in good order: then nothing has gone wrong unless somebody waits."""


class StalledError(CollectiveError, TimeoutError):
    """Some ranks did not submit an operation that others wait for."""


class BoardLostError(LockstitchError):
    """The launcher of a job in which workers come and go is gone, or does not speak to this
    worker."""


class PlacementError(LockstitchError, TimeoutError):
    """A cluster has no room for the workers of a job, or had none in time."""


class SlotDiedError(LockstitchError, ConnectionError):
    """A slot of a `DataParallel` is gone; `slot` names it and `cause` says how it ended. The next
    call replaces it."""

    def __init__(self, slot: str, cause: str = "it has ended") -> None:
        super().__init__(f"{slot} died: {cause}")
        self.slot = slot
        self.cause = cause

    def __reduce__(self) -> tuple[type[SlotDiedError], tuple[str, str]]:
        return type(self), (self.slot, self.cause)


class UnsupportedTorchError(LockstitchError):
    """The torch that is installed lacks something on which the feature stands that was used."""


class ProtocolError(LockstitchError):
    """The two ends of a connection disagree."""


class LocalProtocolError(ProtocolError):
    """Our own side tried to break the protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer's side broke the protocol."""


class HandshakeError(RemoteProtocolError):
    """What came first on a connection is no greeting of a worker of this job; `reason` is one of
    few, for counting."""

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


def tells_of_lost_peer(error: BaseException) -> bool:
    """Whether an error is there because somebody else is gone: by what it is itself, or by any of
    those that it was raised from or while handling."""
    return any(_is_of_lost_peer(each) for each in _with_causes(error))


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Itself, those that it was raised from or while handling, and those of a group; each once."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left += [each.__cause__, None if each.__suppress_context__ else each.__context__]
        left += getattr(each, "exceptions", ())


def _is_of_lost_peer(error: BaseException) -> bool:
    if isinstance(error, ConnectionError):
        return not isinstance(error, SlotDiedError)  # a slot is the process's own child
    if type(error).__name__ in _OF_CONNECTIONS:
        return True
    return isinstance(error, RuntimeError) and any(
        words in text_of(error) for words in _WORDS_OF_CONNECTIONS
    )


def copy_of(error: BaseException) -> BaseException:
    """A copy to be raised in place of an error that is kept; itself, where none can be made.

    What is raised collects the frames that it passes, and so keeps alive whatever they hold, for
    as long as it lives itself.
    """
    with OWN_ERRORS_IGNORED:
        copy = _blank_copy(error)
        copy.__dict__.update(error.__dict__)
        if "__notes__" in copy.__dict__:
            set_attribute(copy, "__notes__", list(copy.__dict__["__notes__"]))
        for name in ("__cause__", "__context__", "__suppress_context__", "__traceback__"):
            set_attribute(copy, name, own_attribute(error, name))
        return copy
    return error


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Sets what every exception has, whatever its class says to that, such as the `__setattr__` of
    a frozen dataclass."""
    attribute = vars(BaseException).get(name)
    if attribute is None:
        BaseException.__setattr__(error, name, value)
    else:
        attribute.__set__(error, value)


def own_attribute(error: BaseException, name: str) -> Any:
    """Returns what every exception has, whatever its class says to that."""
    return vars(BaseException)[name].__get__(error)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Returns where an error has passed."""
    return own_attribute(error, "__traceback__")  # type: ignore[no-any-return]


def without_traceback(error: E) -> E:
    """The error, which does not keep alive any more what its frames hold."""
    set_attribute(error, "__traceback__", None)
    return error


def text_of(error: object) -> str:
    """What an error says. One that fails at that must not keep anybody waiting."""
    with OWN_ERRORS_IGNORED:
        return str.__str__(str(error))  # which may be of a class of the program
    return "(its text cannot be shown)"


def repr_of(error: object) -> str:
    """… and what it is; an error, or another object of a program."""
    with OWN_ERRORS_IGNORED:
        return repr(error)
    return f"{type(error).__qualname__} {text_of(error)}"


def add_note(error: BaseException, note: str) -> None:
    """Says more of an error that stays what it is. Python prints it below the error's text, but for
    Python 3.10: see `format_error`."""
    with OWN_ERRORS_IGNORED:
        set_attribute(error, "__notes__", [*getattr(error, "__notes__", ()), note])


def format_error(error: BaseException, begin: TracebackType | None) -> str:
    """An error as Python prints it, from the frame `begin` on, with its notes on Python 3.10 too;
    those of its causes, which stand above it, then come last."""
    with OWN_ERRORS_IGNORED:
        text = "".join(traceback.format_exception(type(error), error, begin))
        if not hasattr(error, "add_note"):
            parts = _with_causes(error)
            notes = [note for part in parts for note in getattr(part, "__notes__", ())]
            text += "".join(f"{note}\n" for note in notes if note not in text)
        return text
    return "".join(traceback.format_tb(begin)) + f"{type(error).__qualname__}: {text_of(error)}\n"


def print_error(error: BaseException, begin: TracebackType | None) -> None:
    """Shows an error that nobody can be told, as Python shows one that ends a thread."""
    if hasattr(error, "add_note") or sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, begin)
    else:
        print(format_error(error, begin), end="", file=sys.stderr)


def _blank_copy(error: BaseException) -> BaseException:
    """A new exception of the same type, made by the builtin type that it derives from: an
    `__init__` of its own may want other arguments than it passed on."""
    cls = type(error)
    for base in cls.__mro__:
        if base.__module__ == "builtins":
            reduce: Any = base.__reduce__
            try:
                # Not of `args` alone, which have no file's name of an `OSError`.
                _, args, *states = reduce(error)
                copy = base.__new__(cls, *args)
                base.__init__(copy, *args)  # type: ignore[misc]
            except (TypeError, ValueError):  # of several builtin bases only one can make it
                continue
            for name, value in {**dict(*states), **_in_slots(error)}.items():
                if name not in error.__dict__:  # such as the module of an `ImportError`
                    set_attribute(copy, name, value)
            return copy
    return error


def _in_slots(error: BaseException) -> dict[str, Any]:
    """What an error keeps in slots that its classes have named."""
    named = [name for cls in type(error).__mro__ for name in cls.__dict__.get("__slots__", ())]
    return {name: getattr(error, name) for name in named if hasattr(error, name)}
