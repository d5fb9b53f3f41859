"""Mishaps, written as a script.

`Faults().drop(ForkRequest).delay(Reply, by=5, to="w1").repeat(ForkAccept).kill("w2", after=Call)`:
each rule names the frames it means (a message class, a sender, a receiver) and strikes the `nth` of
them and the `times - 1` that follow. Every rule sees every frame, in the order of the script, and
alters what the earlier ones have left of it. `MemoryNetwork(faults=...)` asks the script.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypedDict

from lockstitch.transport.memory import Action, Break, Deliver, Kill
from lockstitch.wire.messages import KINDS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lockstitch.wire.messages import Message

Actions = list[Action]


class Which(TypedDict, total=False):
    """The arguments that say which of the frames a rule strikes; the same for all rules.

    `nth` counts from 1 (default 1); `times` is how many in a row (default 1, None for ever);
    `sender` and `to` are names of workers (default anybody).
    """

    nth: int
    times: int | None
    sender: str | None
    to: str | None


class Effect(Protocol):
    """What a rule does to the frames that it strikes."""

    def alter(self, actions: Actions) -> Actions: ...


@dataclass(frozen=True, slots=True)
class _Drop:
    def alter(self, actions: Actions) -> Actions:
        return [each for each in actions if not isinstance(each, Deliver)]


@dataclass(frozen=True, slots=True)
class _Delay:
    by: float

    def alter(self, actions: Actions) -> Actions:
        return [
            dataclasses.replace(each, after_seconds=each.after_seconds + self.by)
            if isinstance(each, Deliver)
            else each
            for each in actions
        ]


@dataclass(frozen=True, slots=True)
class _Repeat:
    copies: int

    def alter(self, actions: Actions) -> Actions:
        return actions + self.copies * [each for each in actions if isinstance(each, Deliver)]


@dataclass(frozen=True, slots=True)
class _Reorder:
    behind: int

    def alter(self, actions: Actions) -> Actions:
        return [
            dataclasses.replace(each, behind=self.behind) if isinstance(each, Deliver) else each
            for each in actions
        ]


@dataclass(frozen=True, slots=True)
class _Kill:
    worker: str

    def alter(self, actions: Actions) -> Actions:
        return [*actions, Kill(self.worker)]


@dataclass(frozen=True, slots=True)
class _Break:
    own: bool = True
    others: bool = True
    before: bool = False

    def alter(self, actions: Actions) -> Actions:
        broken = Break(self.own, self.others)
        return [broken, *actions] if self.before else [*actions, broken]


@dataclass(frozen=True, slots=True, repr=False)
class Rule:
    """A line of the script: which frames are meant, which of them are struck, and by what.

    `party` is a worker that must be the frame's sender or receiver.
    """

    effect: Effect
    kind: int | None
    party: str | None = None
    nth: int = 1
    times: int | None = 1
    sender: str | None = None
    to: str | None = None

    def means(self, sender: str, receiver: str, kind: int) -> bool:
        """Whether a frame is one of those that the rule counts."""
        return (
            self.kind in (None, kind)
            and self.sender in (None, sender)
            and self.to in (None, receiver)
            and self.party in (None, sender, receiver)
        )

    def strikes(self, number: int) -> bool:
        """Whether the rule strikes the frame with that number, counted from 1."""
        return number >= self.nth and (self.times is None or number < self.nth + self.times)

    def __repr__(self) -> str:
        verb = type(self.effect).__name__.removeprefix("_").lower()
        words = ["any" if self.kind is None else KINDS[self.kind].__name__]
        words += [f"{name}={value!r}" for name, value in _non_defaults(self.effect)]
        words += [
            f"{name}={value!r}"
            for name, value in _non_defaults(self)
            if name in Which.__annotations__
        ]
        return f"{verb}({', '.join(words)})"


class Faults:
    """A script of mishaps; rules may be added while it is played.

    `message` is a message class (`lockstitch.wire.messages`), or None for every frame. `nth`: which
    of these a rule strikes first, counted from 1 (1); `times`: how many in a row (1; None for
    ever); `sender`, `to`: names of workers (anybody).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._seen: list[int] = []

    def __repr__(self) -> str:
        with self._lock:
            rules = zip(self._rules, self._seen, strict=True)
            script = [f"{rule!r} [{seen} seen]" for rule, seen in rules]
        return f"<Faults: {' · '.join(script) or 'none'}>"

    def drop(self, message: type[Message] | None = None, **which: Unpack[Which]) -> Faults:
        """Loses the frame."""
        return self._add(Rule(_Drop(), _kind(message), **which))

    def delay(
        self, message: type[Message] | None = None, *, by: float, **which: Unpack[Which]
    ) -> Faults:
        """Has the frame arrive `by` seconds later; those behind it do not wait."""
        return self._add(Rule(_Delay(by), _kind(message), **which))

    def repeat(
        self, message: type[Message] | None = None, *, copies: int = 1, **which: Unpack[Which]
    ) -> Faults:
        """Has the frame arrive, and `copies` more times."""
        return self._add(Rule(_Repeat(copies), _kind(message), **which))

    def reorder(
        self, message: type[Message] | None = None, *, behind: int = 1, **which: Unpack[Which]
    ) -> Faults:
        """Has the frame arrive only behind that many later frames of the same connection."""
        return self._add(Rule(_Reorder(behind), _kind(message), **which))

    def kill(
        self, worker: str, *, after: type[Message] | None = None, **which: Unpack[Which]
    ) -> Faults:
        """Has the worker die once such a frame, from it or to it, has been sent."""
        return self._add(Rule(_Kill(worker), _kind(after), worker, **which))

    def break_connections(
        self,
        message: type[Message] | None = None,
        *,
        own: bool = True,
        others: bool = True,
        before: bool = False,
        **which: Unpack[Which],
    ) -> Faults:
        """Breaks connections between the frame's sender and its receiver, once the frame has
        arrived, or `before`, so that it does not: its `own`, and the `others`."""
        return self._add(Rule(_Break(own, others, before), _kind(message), **which))

    def apply(self, sender: str, receiver: str, kind: int) -> Actions:
        """Returns what shall happen to a frame; see `FrameScript`."""
        actions: Actions = [Deliver()]
        with self._lock:
            for index, rule in enumerate(self._rules):
                if rule.means(sender, receiver, kind):
                    self._seen[index] += 1
                    if rule.strikes(self._seen[index]):
                        actions = rule.effect.alter(actions)
        return actions

    def _add(self, rule: Rule) -> Faults:
        with self._lock:
            self._rules.append(rule)
            self._seen.append(0)
        return self


def _kind(message: type[Message] | None) -> int | None:
    return None if message is None else message.KIND


def _non_defaults(value: object) -> list[tuple[str, object]]:
    """Returns names and values of a dataclass's fields that differ from their defaults."""
    fields = dataclasses.fields(value)  # type: ignore[arg-type]
    pairs = [(field, getattr(value, field.name)) for field in fields]
    return [(field.name, each) for field, each in pairs if each != field.default]
