"""The job's store at the launcher: a table of values by key, which outlives every worker.

Workers that join a group of rpc find each other by it (`rendezvous.launcher_store`). No I/O here:
a request goes in, the reply comes out.
"""

from __future__ import annotations

from lockstitch.launcher_link.messages import StoreReply, StoreRequest


class Values:
    """The values, by key."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Values of {len(self._values)} keys>"

    def answer(self, request: StoreRequest) -> StoreReply:
        """Does what is asked. The reply holds the value that the key has then; for `delete` the one
        that it had; None where there is none.

        `compare_set` writes where the value is the expected one; an empty expectation fits where
        there is no value, too. `add` counts: both values are whole numbers in decimal, and 0 where
        there is none; it does nothing where they are not.
        """
        key, before = request.key, self._values.get(request.key)
        if request.operation == "delete":
            self._values.pop(key, None)
            return StoreReply(request.number, before)
        if request.operation == "set" or (
            request.operation == "compare_set" and (before or "") == request.expected
        ):
            self._values[key] = request.value
        elif request.operation == "add":
            self._add(key, before or "0", request.value)
        return StoreReply(request.number, self._values.get(key))

    def _add(self, key: str, before: str, amount: str) -> None:
        try:
            self._values[key] = str(int(before) + int(amount))
        except ValueError:
            return
