"""What the owner does for others: makes values, and sends copies of them.

A fetch for a value that is not there yet is parked; it holds no thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import RemoteError, RRefError, repr_of, text_of
from lockstitch.rref.events import Asked, Called
from lockstitch.wire.messages import Fetch, RemoteCall

if TYPE_CHECKING:
    from lockstitch.rref.ledger import Ledger
    from lockstitch.rref.values import OwnedValue
    from lockstitch.runtime.agent import Agent
    from lockstitch.runtime.invocation import Invocation

_LONGEST_WORDS: Final = 2000


class ValueServer:
    """Serves `RemoteCall` and `Fetch`."""

    def __init__(self, agent: Agent, ledger: Ledger) -> None:
        self._agent = agent
        self._ledger = ledger
        agent.serve(RemoteCall, self.make)
        agent.serve(Fetch, self.fetch)

    def make(self, invocation: Invocation) -> None:
        """Runs the function of a `RemoteCall`, and keeps what it returns or raises."""
        message, user = invocation.message, invocation.caller
        assert isinstance(message, RemoteCall)
        value: OwnedValue | None
        if user == self._agent.id:
            value = self._ledger.find_value(message.reference)
        else:
            called = Called(user, message.reference, message.fork, message.serial)
            value = self._ledger.claim(called)
        if value is None:
            invocation.discard()
            why = "the call of rpc.remote came when its reference was gone, and has not run"
            invocation.fail(RRefError(f"{why} ({message.reference})"))
        else:
            try:
                invocation.run(partial(_conclude, invocation, value))
            except BaseException as error:  # others wait for the value
                value.fail(error)
                raise

    def fetch(self, invocation: Invocation) -> None:
        """Replies with the value that a `Fetch` names, as soon as it is there."""
        message = invocation.message
        assert isinstance(message, Fetch)
        asked = Asked(invocation.caller, message.reference, message.fork, message.serial)
        value = self._ledger.claim(asked)
        if value is None:
            name = f"{message.fork} of {message.reference}"
            invocation.fail(RRefError(f"the reference was deleted before ({name})"))
        elif value.is_done:
            _reply(invocation, value)
        else:
            self._agent.running_requests.begin(invocation)
            invocation.park()
            value.when_done(lambda: self._agent.spawn(partial(_reply, invocation, value)))


def _conclude(
    invocation: Invocation, value: OwnedValue, result: Any, error: BaseException | None
) -> None:
    """The function has ended; the caller is only told that it has, and in words if it failed."""
    if error is None:
        value.set(result)
        invocation.reply(None)
        return
    if isinstance(error, Exception):
        value.fail(error)
    else:  # SystemExit or KeyboardInterrupt must not end whoever looks at the value
        value.fail(RemoteError(f"the function of remote() raised {repr_of(error)}"))
    invocation.reply(f"{type(error).__name__}: {text_of(error)}"[:_LONGEST_WORDS])


def _reply(invocation: Invocation, value: OwnedValue) -> None:
    try:
        result, error = value.get(), None
    except Exception as raised:  # noqa: BLE001 - raised where the caller waits
        result, error = None, raised
    invocation.conclude(invocation.answer, result, error)
