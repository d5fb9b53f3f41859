"""`RRef`: a reference to a value that lives on one worker, usable from all.

On the owner it holds the value itself, elsewhere a fork. It crosses the wire by the reducer that
`ReferenceService` registers, and refuses every other pickler. Its finalizer only notes that it is
gone: it may run at any point and under any lock, and no interrupt strikes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from torch.autograd.profiler import record_function

from lockstitch.clock import UNSET_TIMEOUT
from lockstitch.errors import NotInitializedError, RRefError
from lockstitch.rref.backward import UNSET_CONTEXT, backward_from
from lockstitch.rref.creation import Creation
from lockstitch.rref.home import Home, State
from lockstitch.rref.proxy import CallKind, RRefProxy
from lockstitch.runtime.invocation import Deferred
from lockstitch.runtime.pending import Future
from lockstitch.runtime.worker import current_worker, has_current_worker
from lockstitch.torch_internals.autograd import is_profiling
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lockstitch.ids import WorkerInfo
    from lockstitch.rref.user_fork import UserFork
    from lockstitch.rref.values import OwnedValue

    AnyHome = Home["RRef[Any]"]

T_co = TypeVar("T_co", covariant=True)


class RRef(Generic[T_co]):
    """A reference to a value of type `T` on some worker, its *owner*.

    `RRef(value)` makes the current worker the owner of `value`; `rpc.remote` makes another one the
    owner of what a function returns. References can be sent to other workers as arguments and
    return values; the value is kept while any worker holds a reference to it. `type_hint` is taken
    for compatibility and ignored.

    Raises `NotInitializedError` where there is no worker.
    """

    # Of C alone: what Python calls when the object goes. A method of ours would be a place where an
    # interrupt may strike, and be swallowed, with the reference kept for good.
    __del__: Callable[[], None]

    __slots__ = ("__del__", "__weakref__", "_creation", "_fork", "_home", "_type", "_value")

    def __init__(self, value: T_co, type_hint: object = None) -> None:  # noqa: ARG002
        self._fork: UserFork | None = None
        self._creation: Creation | None = None
        self._type: torch.futures.Future[type[T_co]] | None = None
        self._home = _current_home()
        self._value: OwnedValue | None = self._home.own(value)

    @classmethod
    def _of_value(cls, home: AnyHome, value: OwnedValue) -> RRef[Any]:
        """A reference to a value of this worker."""
        return cls._make(home, value, None)

    @classmethod
    def _of_fork(cls, home: AnyHome, fork: UserFork, gone: Callable[[], None]) -> RRef[Any]:
        """A reference to a value of another worker. At its end `gone` is called, at any point and
        under any lock."""
        rref = cls._make(home, None, fork)
        rref.__del__ = gone
        return rref

    @classmethod
    def _make(cls, home: AnyHome, value: OwnedValue | None, fork: UserFork | None) -> RRef[Any]:
        rref: RRef[Any] = cls.__new__(cls)
        rref._fork = fork
        rref._creation = None
        rref._type = None
        rref._home = home
        rref._value = value
        return rref

    def __repr__(self) -> str:
        if self._value is not None:
            condition = "owner · " + ("ready" if self._value.is_done else "not ready yet")
            counter = self._value.reference.counter
        else:
            assert self._fork is not None
            condition = "user · " + self._fork.condition
            counter = self._fork.reference.counter
        return f"<RRef {counter}@{self.owner_name()} · {condition}>"

    def __str__(self) -> str:
        return str(self._value if self._value is not None else self._fork)

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise RRefError(
            "Can not pickle rref in python pickler, rref can only be pickled when using RPC: send "
            "it to another worker as an argument, or save the value, to_here()"
        )

    if not TYPE_CHECKING:  # a type checker should go on complaining

        def __getattr__(self, name: str) -> NoReturn:
            advice = (
                ""
                if name.startswith("_")
                else ": it refers to a value. to_here() fetches that, and "
                f"rpc_sync().{name}() calls its method where it is"
            )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{advice}"
            )

    # ------------------------------------------------------------ whose it is

    def owner(self) -> WorkerInfo:
        """The worker that the value lives on."""
        return self._home.worker.info if self._fork is None else self._fork.owner

    def owner_name(self) -> str:
        """The name of `owner()`."""
        return self.owner().name

    def is_owner(self) -> bool:
        """Whether the value lives on this worker."""
        return self._fork is None

    def confirmed_by_owner(self) -> bool:
        """Whether the owner knows of this reference. Always true inside a function that got the
        reference as an argument."""
        return self._fork is None or self._fork.is_confirmed()

    # ------------------------------------------------------------ the value

    def to_here(self, timeout: float = UNSET_TIMEOUT) -> T_co:
        """A copy of the value; on the owner the value itself. Waits until the value is there.

        `timeout`: seconds, 0 for none, -1 for the default in force. Raises `RpcTimeoutError` when
        it is over, `OwnerDiedError` when the owner is gone, and the exception with which the
        function of `remote` ended, if it did.
        """
        if self._value is not None:
            blocked = self._home.worker.agent.blocked
            value: T_co = self._value.get(timeout if timeout > 0 else None, blocked)
        else:
            assert self._fork is not None
            value = self._home.fetch(self._fork, timeout)
        return value

    def local_value(self) -> T_co:
        """The value itself, on its owner only; waits until it is there.

        Raises `RRefError` on any other worker.
        """
        if self._value is None:
            assert self._fork is not None
            raise RRefError(
                f"For {self._fork.description}, can't call localValue() on user "
                f"{self._home.worker.info}. Call it on owner {self.owner()}"
            )
        return cast("T_co", self._value.get(None, self._home.worker.agent.blocked))

    def rpc_sync(self, timeout: float = UNSET_TIMEOUT) -> Any:
        """A proxy whose methods run on the owner and return the result: `r.rpc_sync().size()`.

        `timeout`: seconds for each call, 0 for none, -1 for the default in force. Calls raise what
        `rpc.rpc_sync` does, and `AttributeError` for a name that the value's type lacks.
        """
        return RRefProxy(self, CallKind.SYNC, timeout)

    def rpc_async(self, timeout: float = UNSET_TIMEOUT) -> Any:
        """A proxy whose methods run on the owner and return a future of the result; otherwise as
        `rpc_sync`."""
        return RRefProxy(self, CallKind.ASYNC, timeout)

    def remote(self, timeout: float = UNSET_TIMEOUT) -> Any:
        """A proxy whose methods run on the owner and return a reference to the result; otherwise as
        `rpc_sync`."""
        return RRefProxy(self, CallKind.REMOTE, timeout)

    def backward(
        self, dist_autograd_ctx_id: int = UNSET_CONTEXT, retain_graph: bool = False
    ) -> None:
        """Runs backward from the value, a tensor of one element, on its owner.

        With the id of an autograd context the pass goes over all its workers and gradients go to
        the context; without one, which only the owner may do, the pass is a local one and gradients
        go to `.grad`. Raises `RRefError` for a value that is no tensor, and without an id on
        another worker; otherwise what `autograd.backward` does.
        """
        if self._value is not None:
            value = self.local_value()
            backward_from(self._home.worker, value, dist_autograd_ctx_id, retain_graph)
            return
        if dist_autograd_ctx_id == UNSET_CONTEXT:
            assert self._fork is not None
            raise RRefError(
                f"{self._fork.whose} needs a context for backward, since that begins elsewhere: "
                "backward(context_id). User RRefs require 'dist_autograd_ctx_id' to be specified"
            )
        agent = self._home.worker.agent
        arguments = (self, dist_autograd_ctx_id, retain_graph)
        agent.outgoing.call(self.owner().worker, _backward_on_owner, arguments)

    # ------------------------------------------------------------ what programs reach for

    def _get_type(self, timeout: float = UNSET_TIMEOUT, blocking: bool = True) -> Any:
        """The type of the value, or a future of it; asked of the owner once."""
        future = self._type
        if future is None or _has_failed(future):
            future = self._type = self._ask_for_type(timeout)
        return future.wait() if blocking else future

    def _ask_for_type(self, timeout: float) -> torch.futures.Future[type[T_co]]:
        if self._value is not None:
            return _type_of(self._value)
        agent = self._home.worker.agent
        owner, outgoing = self.owner(), agent.outgoing
        if not is_profiling():
            return outgoing.call_async(owner.worker, _rref_typeof_on_owner, (self,), None, timeout)
        key = f"rpc_async#_rref_typeof_on_owner({agent.info.name} -> {owner.name})"
        with record_function(key):
            return outgoing.call_async(owner.worker, _rref_typeof_on_owner, (self,), None, timeout)

    def _get_future(self) -> torch.futures.Future[Any]:
        """Completes when the owner has made the value, or failed to; at once for `RRef(value)`."""
        if self._creation is None:
            self._creation = Creation(_nothing)
            self._creation.complete(None, None)
        return self._creation.future()

    def _get_outcome(self) -> torch.futures.Future[Any]:
        """Does so too, with an error where the owner's function raised one: for those who tell how
        calls have ended."""
        self._get_future()
        assert self._creation is not None
        return self._creation.outcome()

    def _serialize(self) -> State:
        """A fork of this reference as plain values."""
        return self._home.send_off(self, None)

    @staticmethod
    def _deserialize(state: State) -> RRef[Any]:
        """The reference that `_serialize` on some worker made for this one."""
        return _current_home().receive(state)


PyRRef = RRef
"""The incumbent's name for what `remote` returns; here there is only one class."""


def _current_home() -> AnyHome:
    if not has_current_worker():
        raise NotInitializedError(
            "Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling "
            "`rpc.init_rpc`)?"
        )
    return current_worker().service(Home)  # type: ignore[type-abstract]


def _nothing(_error: BaseException | None) -> None:
    pass


def _has_failed(future: torch.futures.Future[Any]) -> bool:
    if not future.done():
        return False
    try:
        future.value()
    except Exception:  # noqa: BLE001 - the next caller asks again, and sees its own error
        return True
    return False


def _type_of(value: OwnedValue) -> Future[Any]:
    future: Future[Any] = Future()

    def complete() -> None:
        try:
            future.set_result(type(value.get()))
        except Exception as error:  # noqa: BLE001 - raised where the type is wanted
            future.set_exception(error)

    value.when_done(complete)
    return future


@needed
def _rref_typeof_on_owner(rref: RRef[Any]) -> Any:
    """Holds no thread while the value is still to come."""
    return Deferred(rref._get_type(blocking=False))


@needed
def _backward_on_owner(rref: RRef[Any], context_id: int, retain_graph: bool) -> None:
    rref.backward(context_id, retain_graph)
