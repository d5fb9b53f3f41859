"""Groups of parameters: as a program gives them, and as it sees them afterwards.

    given        references, pairs of a name and a reference, or dicts with these under "params"
    a view       a dict of a group's options, as an optimizer of torch has it

What is assigned to a view is kept, and goes to the owners of the group's parameters before it can
matter: with the next step, or when an option that was assigned is read. So a scheduler that sets
the options of several groups, and reads them at the end, costs each owner one message.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lockstitch.rpc import RRef
from lockstitch.trust.registry import needed
from lockstitch.unversioned import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lockstitch.ids import WorkerInfo

    Reference = RRef[torch.Tensor]

PARAMS, NAMES = "params", "param_names"
FIXED: Final = frozenset((PARAMS, NAMES))
"""What a group was made of, and no option."""


@needed
class Change(NamedTuple):
    """What was assigned to the options of a group, and which options were removed."""

    assigned: dict[str, Any]
    removed: tuple[str, ...] = ()


@needed
class OptionElsewhere:
    """Stands for the value of an option that only its owner has: it may not be able to cross."""

    def __init__(self, described: str) -> None:
        self._described = described

    def __repr__(self) -> str:
        return f"<{self._described} on the owner of the parameters>"


def shown(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group, or the defaults of an optimizer, as their owner shows them to
    others."""
    return {key: _shown(value) for key, value in options.items() if key not in FIXED}


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(_shown, value))
    if type(value) is dict:
        return {key: _shown(each) for key, each in value.items()}
    return OptionElsewhere(f"a {type(value).__qualname__}")


class GivenGroup(NamedTuple):
    """A group as a program gives it. `names` has a name for each reference, or is None."""

    references: list[Reference]
    names: list[str] | None
    options: dict[str, Any]


def read_groups(given: Iterable[Any]) -> list[GivenGroup]:
    """The groups that `params_rref` stands for; no dict at the beginning: they are one group.
    Raises `TypeError` or `ValueError` for anything else than references, in the forms of torch."""
    things = list(given)
    if things and isinstance(things[0], dict):
        return [read_group(thing, f"of group {index}") for index, thing in enumerate(things)]
    return [GivenGroup(*_references(things, ""), {})] if things else []


def read_group(given: object, which: str) -> GivenGroup:
    """One group, given as a dict; `which` says for errors which it is."""
    if not isinstance(given, dict):
        raise TypeError(f"param_group must be a dict, but got {type(given)}")
    if PARAMS not in given:
        raise KeyError(f"{PARAMS!r} is missing: a group of parameters has its references under it")
    params = given[PARAMS]
    if isinstance(params, set):
        raise TypeError("the references of a group come in an order: give a list, not a set")
    references, names = _references([params] if isinstance(params, RRef) else list(params), which)
    return GivenGroup(references, names, {k: v for k, v in given.items() if k != PARAMS})


def _references(things: list[Any], which: str) -> tuple[list[Reference], list[str] | None]:
    names: list[str] = []
    references: list[Reference] = []
    for position, thing in enumerate(things):
        reference = thing
        if isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[0], str):
            names.append(thing[0])
            reference = thing[1]
        if not isinstance(reference, RRef):
            number = f"number {position} {which}".rstrip()
            raise TypeError(
                f"params_rref is a list of references, but {number} is a "
                f"{type(reference).__name__}: wrap parameters of this worker in RRef(…)"
            )
        references.append(reference)
    if names and len(names) != len(references):
        raise ValueError(
            "all optimizer params should be with/without names. Some param names are missing"
        )
    return references, names or None


class Part(NamedTuple):
    """What one owner has of a group."""

    group: int
    """The number of the group among all."""
    positions: list[int]
    """The numbers of its parameters among those of all groups."""
    given: GivenGroup
    """Its references and their names, and the options of the group."""


def by_owner(
    groups: list[GivenGroup], first_group: int = 0, first_position: int = 0
) -> dict[WorkerInfo, list[Part]]:
    """The parts of each owner, where groups and parameters are numbered from here on."""
    parts: dict[WorkerInfo, list[Part]] = {}
    position = first_position
    for number, group in enumerate(groups, first_group):
        for index, reference in enumerate(group.references):
            own = parts.setdefault(reference.owner(), [])
            if not own or own[-1].group != number:
                names = None if group.names is None else list[str]()
                own.append(Part(number, [], GivenGroup([], names, group.options)))
            own[-1].positions.append(position + index)
            own[-1].given.references.append(reference)
            if group.names is not None and own[-1].given.names is not None:
                own[-1].given.names.append(group.names[index])
        position += len(group.references)
    return parts


class ParameterGroup(dict[str, Any]):
    """A view of one group of parameters, wherever they are: its options by name, and under
    "params" the references.

    Options are read, assigned, added and removed as in the dict that an optimizer of torch has.
    What an owner does not take is raised where it is sent: by the next `step`, or by reading.
    Where a step itself changes options, the view shows those of the first owner.
    """

    def __init__(
        self, references: list[Reference], names: list[str] | None, send: Callable[[], None]
    ) -> None:
        super().__init__({PARAMS: references})
        if names is not None:
            super().__setitem__(NAMES, names)
        self._send = weakref.WeakMethod(send)
        self._changed: set[str] = set()
        self._states: dict[str, Any] = {}

    # ------------------------------------------------------------ what a program does

    def __getitem__(self, key: str) -> Any:
        self._send_if_changed(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns an option, or `default`."""
        self._send_if_changed(key)
        return super().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        _check_is_option(key)
        super().__setitem__(key, value)
        self._note(key)

    def __delitem__(self, key: str) -> None:
        _check_is_option(key)
        super().__delitem__(key)
        self._note(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Returns an option, which is `default` where there was none."""
        if key not in self:
            self[key] = default
        return super().__getitem__(key)

    def update(self, *others: Any, **options: Any) -> None:
        """Assigns several options."""
        for key, value in dict(*others, **options).items():
            self[key] = value

    def __ior__(self, other: Any) -> ParameterGroup:  # type: ignore[override, misc]
        self.update(other)
        return self

    def pop(self, key: str, *default: Any) -> Any:
        """Removes an option, and returns it."""
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Refused: it would take apart what the group is made of."""
        raise TypeError("a group of parameters keeps its options: remove one by its name")

    def clear(self) -> None:
        """Refused, likewise."""
        self.popitem()

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """A copy, and what crosses to another worker, is an ordinary dict."""
        return dict, ({**self},)

    # ------------------------------------------------------------ what the optimizer does

    def _note(self, key: str) -> None:
        value = super().get(key)
        if isinstance(value, torch.Tensor):
            self._states[key] = UNVERSIONED.state_of(value)
        else:
            self._states.pop(key, None)
        self._changed.add(key)

    def _send_if_changed(self, key: str) -> None:
        send = self._send() if key in self._changed else None
        if send is not None:
            send()

    def take_change(self) -> Change | None:
        """What was changed since the last time, be it by writing into a tensor; None: nothing."""
        for key, state in self._states.items():
            if UNVERSIONED.state_of(super().__getitem__(key)) != state:
                self._changed.add(key)
        if not self._changed:
            return None
        changed, self._changed = self._changed, set()
        assigned = {key: super(ParameterGroup, self).__getitem__(key) for key in changed & {*self}}
        for key, value in assigned.items():
            if isinstance(value, torch.Tensor):
                self._states[key] = UNVERSIONED.state_of(value)
        return Change(assigned, tuple(changed - {*self}))

    def give_back(self, change: Change) -> None:
        """The change has not reached all owners: it is still to be sent."""
        self._changed.update(change.assigned, change.removed)

    def show(self, options: Mapping[str, Any], *, only: bool = False) -> None:
        """From now on the view shows these options, as an owner has told, but for those that were
        assigned meanwhile; with `only` these and no others."""
        if only:
            self._changed.clear()
            for key in [key for key in self if key not in FIXED and key not in options]:
                super().__delitem__(key)
        for key, value in options.items():
            if key not in self._changed:
                super().__setitem__(key, value)
                self._note(key)
                self._changed.discard(key)

    def share(self, key: str, tensor: torch.Tensor) -> None:
        """From now on that tensor, which other views may have, too, is the value of an option."""
        is_same = torch.equal(super().__getitem__(key), tensor)
        super().__setitem__(key, tensor)
        self._note(key)
        if is_same:
            self._changed.discard(key)

    @property
    def options(self) -> dict[str, Any]:
        """All but the references and their names."""
        return {key: value for key, value in self.items() if key not in FIXED}


def _check_is_option(key: str) -> None:
    if key in FIXED:
        raise ValueError(
            f"{key!r} is what the group was made of: other parameters go into a group of their "
            "own, by add_param_group"
        )
