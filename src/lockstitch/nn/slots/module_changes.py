"""What has changed in the caller's module since the slots were last told of changes.

A replica is made once. Before each call, and after the caller's own part of it, the module is
compared with what it was: 0.5 µs for each submodule. What differs is told to the slots, if that is
possible, or they are made anew:

    an attribute of plain values (`training`, a dropout's `p`, a list of them)  told
    a buffer, a frozen parameter: another tensor, or changed in place          told
    parameters: others, elsewhere in memory, frozen or unfrozen; submodules;
    hooks; attributes of other types, tensors that are attributes written to   made anew

A module may keep tensors or objects of its own as attributes in its forward pass, the last weights
of an attention, say, or a state for the next pass. Each replica keeps its own; the caller's are no
reason to make slots anew (`settle`). What the program does with them between calls is: so a state
that it sets back is set back in all slots.

Batch statistics are written without a new version of the tensor, but a counter beside them is not:
so all buffers of a submodule are told when one of them has changed, and those that may be such
statistics, where no counter is beside them, each time.
"""

from __future__ import annotations

import copy
import itertools
import types
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lockstitch.nn.slots.base import NO_CHANGES, Changes
from lockstitch.torch_internals.modules import (
    BUFFERS,
    PARAMETERS,
    TABLES,
    buffers_of,
    parameters_of,
)
from lockstitch.torch_internals.tensors import UNKNOWN, known_versions_of, swap_tensors, version_of
from lockstitch.unversioned import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_Ref: TypeAlias = "ref[torch.Tensor]"
_NOWHERE = {None, 0}
"""The storage of what has no memory."""
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS = (dict, list, set)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_TABLES_OF_TORCH = frozenset(vars(nn.Module()))
_DEEPEST = 4


class Deleted:
    """Stands for the value of an attribute that is gone."""


TableEntry: TypeAlias = "tuple[dict[str, Any], str]"
"""A table of a module (of parameters or buffers), and a name in it."""
_State: TypeAlias = "tuple[torch.Tensor | None, tuple[int, int], object]"
"""A tensor, the number of writes to it, and its `_place`."""


def places_of_others(modules: Iterable[nn.Module]) -> list[TableEntry]:
    """The entries of the tensors that each replica has for itself: buffers and frozen parameters,
    in the order of modules."""
    tables = [table for module in modules for table in (buffers_of(module), parameters_of(module))]
    places: list[TableEntry] = []
    known: set[int] = set()
    for table in tables:
        for name, tensor in table.items():
            is_other = tensor is None or not tensor.requires_grad
            if is_other and (tensor is None or id(tensor) not in known):
                known.add(id(tensor))
                places.append((table, name))
    return places


def versions_of(places: Iterable[TableEntry]) -> list[int]:
    """How often each of these tensors has been written to, as far as torch counts."""
    return known_versions_of([table[name] for table, name in places])


def written_since(before: Sequence[int], entries: Sequence[TableEntry]) -> list[int]:
    """The numbers of the tensors that have other versions than those `before`."""
    if not before:
        return []
    pairs = zip(before, versions_of(entries), strict=True)
    return [i for i, (old, new) in enumerate(pairs) if old != new]


def keeps_nothing_else(module: nn.Module) -> bool:
    """Whether no submodule has more than tensors, plain values, and functions: nothing in which it
    could keep something from one call to the next unseen by a `ChangeTracker`. A hook could."""
    return all(
        _is_plain(value)
        or (isinstance(value, dict) and not value)
        or (isinstance(value, _FUNCTIONS) and getattr(value, "__closure__", None) is None)
        for each in module.modules()
        for name, value in each.__dict__.items()
        if name not in TABLES
    )


def trainable(module: nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers that require gradients."""
    return [
        each
        for each in itertools.chain(module.parameters(), module.buffers())
        if each.requires_grad
    ]


def apply_changes(
    modules: Sequence[nn.Module], others: Sequence[TableEntry], changes: Changes
) -> None:
    """Brings a replica up to date."""
    for number, name, value in changes.attributes:
        if value is Deleted:
            modules[number].__dict__.pop(name, None)
        else:
            # Another slot of this process may have been told the same.
            own = copy.deepcopy(value) if isinstance(value, _CONTAINERS) else value
            modules[number].__dict__[name] = own
    for number, tensor in changes.others:
        table, name = others[number]
        old = table[name]
        if old is None or tensor is None:
            table[name] = tensor
        else:
            # Another tensor, under the same names. A graph that has saved the old one may go back
            # to what it was then; `old.data = tensor` would change that, unseen.
            swap_tensors(old, tensor)


class KnownState:
    """How much of the module's state one slot knows: the number of the last change of an attribute,
    and each tensor of `places_of_others`, by its number, with its version and its place."""

    def __init__(self) -> None:
        self.last_change = 0
        self.others: dict[int, _State] = {}


class ChangeTracker:
    """Finds out what the program changes in one module."""

    def __init__(self, module: nn.Module) -> None:
        if any(is_lazy(each) for each in module.parameters()):
            raise RuntimeError(
                "Modules with uninitialized parameters can't be used with `DataParallel`. "
                "Run a dummy forward pass to correctly initialize the modules"
            )
        self.modules = list(module.modules())
        self.leaves = trainable(module)
        """What gradients are wanted of: parameters, and buffers that are treated like them."""
        self.others = places_of_others(self.modules)
        self._is_uncounted = self._find_uncounted()
        self._attribute_changes: dict[tuple[int, str], tuple[int, Any]] = {}
        """The last change of each attribute: its number, counted over all, and the new value."""
        self._last_change = 0
        self._keeps_own = False
        self.changes_by_program = 0
        """How often the module was found to be changed between two calls, counted from the first
        tracker on that it had; but for its tensors."""
        # The module as it is now, to be compared with what it will be:
        self._seen = [(module.__dict__, dict(module.__dict__)) for module in self.modules]
        self._filled, self._empty = self._current_containers()
        self._shared, self._held = self._current_held()
        self._tables = list(map(parameters_of, self.modules))
        self._traits = self._current_traits()

    @property
    def is_quiet(self) -> bool:
        """Whether the module has not been seen to keep anything in its forward pass."""
        return not self._keeps_own

    def refresh(self) -> bool:
        """Called after a slot was made: returns whether that has moved parameters."""
        before = self._traits
        self._traits = self._current_traits()
        return self._traits != before

    def _current_containers(self) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """The containers among the attributes: those that are not empty, each with a copy of it,
        and those that are."""
        containers = [
            value
            for module in self.modules
            for name, value in module.__dict__.items()
            if isinstance(value, _CONTAINERS) and name not in (PARAMETERS, BUFFERS)
        ]
        filled = [(each, each.copy()) for each in containers if each]
        return filled, [each for each in containers if not each]

    def _current_held(self) -> tuple[list[_Ref], list[tuple[_Ref, object]]]:
        """Those of `tensors_held_by` that slots get with parameters and buffers; and the others,
        each with its mark, with the buffers beside them: slots get a new one for one that has
        changed, apart from what lay beside it."""
        held = tensors_held_by(self.modules)
        is_known = self._known()
        apart = [each for each in held if not is_known(each)]
        places = {_storage_of(each) for each in apart} - _NOWHERE
        beside = [each for each in self._current_others() if _storage_of(each) in places]
        return (
            [ref(each) for each in held if is_known(each)],
            [(ref(each), _mark(each)) for each in (*apart, *beside)],
        )

    def _current_others(self) -> list[torch.Tensor]:
        others = [table.get(name) for table, name in self.others]
        return [each for each in others if each is not None]

    def _find_uncounted(self) -> list[bool]:
        """Of which of `others` changes are not counted."""
        overlap = _overlaps(self.others, self.leaves)
        statistics = {
            id(each) for each in map(buffers_of, self.modules) if _may_be_statistics(each)
        }
        pairs = zip(overlap, self.others, strict=True)
        return [overlaps or id(table) in statistics for overlaps, (table, _) in pairs]

    def _known(self) -> Callable[[torch.Tensor], bool]:
        """Tells whether a tensor is a buffer, or lies where parameters do."""
        buffers = set(map(id, self._current_others()))
        places = {_storage_of(each) for each in self.leaves} - _NOWHERE
        return lambda tensor: id(tensor) in buffers or _storage_of(tensor) in places

    def _are_known_still(self) -> bool:
        known = [tensor for each in self._shared if (tensor := each()) is not None]
        return not known or all(map(self._known(), known))

    def _are_as_marked(self) -> bool:
        return all(
            _mark(tensor) == before for each, before in self._held if (tensor := each()) is not None
        )

    def _current_traits(self) -> list[Any]:
        """Returns, of each parameter, which it is, where, and whether it wants gradients; of each
        buffer its name, and the same if it wants gradients."""
        parameters = [
            None if each is None else (id(each), place_of(each), each.requires_grad)
            for table in self._tables
            for each in table.values()
        ]
        buffers = [
            (name, id(each), place_of(each)) if each is not None and each.requires_grad else name
            for table in map(buffers_of, self.modules)
            for name, each in table.items()
        ]
        return parameters + buffers

    def known_state(self) -> KnownState:
        """What a slot knows whose replica is being made now."""
        known = KnownState()
        known.last_change = self._last_change
        known.others = {i: _state(*entry) for i, entry in enumerate(self.others)}
        return known

    def look(self) -> bool:
        """Whether the slots can go on, with what `changes` tells them; else they have to be made
        anew, with a new tracker."""
        return (
            self._traits == self._current_traits()
            and self._are_as_marked()
            and self._are_known_still()
            and self._compare(is_own=False)
        )

    def settle(self) -> None:
        """Called after the caller's own forward pass: what the module keeps of it, and slots cannot
        be told, is its own affair."""
        self._held = [
            (each, _mark(tensor)) for each, _ in self._held if (tensor := each()) is not None
        ]
        self._compare(is_own=True)

    def _compare(self, *, is_own: bool) -> bool:
        """Notes what has become of attributes. False where the slots cannot be told, unless
        `is_own`."""
        inside = {id(now) for now, before in self._filled if _differs(now, before)}
        inside.update(id(each) for each in self._empty if each)
        changed = [
            number
            for number, (now, before) in enumerate(self._seen)
            if inside or _differs(now, before)
        ]
        has_containers = bool(inside)
        for number in changed:
            now, before = self._seen[number]
            for name in now.keys() | before.keys():
                new, old = now.get(name, Deleted), before.get(name, Deleted)
                if new is old and id(new) not in inside:
                    continue
                is_container = isinstance(new, _CONTAINERS) or isinstance(old, _CONTAINERS)
                if is_container and name in _TABLES_OF_TORCH:
                    return False
                if new is Deleted or _is_plain(new):
                    self._note_attribute(number, name, copy.deepcopy(new) if is_container else new)
                elif is_own:
                    self._keeps_own = True
                else:
                    return False
                has_containers |= is_container
            self._seen[number] = (now, dict(now))
        self.changes_by_program += bool(changed) and not is_own
        if has_containers:
            self._filled, self._empty = self._current_containers()
        return True

    def _note_attribute(self, number: int, name: str, value: Any) -> None:
        """An attribute has changed; only its last change matters."""
        self._last_change += 1
        self._attribute_changes[number, name] = (self._last_change, value)

    def succeed(self, other: ChangeTracker) -> None:
        """This tracker follows `other`, on the same module, and keeps what that one has learned of
        attributes that change in forward passes."""
        self._keeps_own |= other._keeps_own
        self.changes_by_program = other.changes_by_program + 1

    def changes(self, known: KnownState) -> Changes:
        """What to tell a slot, with copies of tensors; notes that it knows it then."""
        attributes = []
        if known.last_change != self._last_change:
            changes = self._attribute_changes.items()
            attributes = [
                (*which, value) for which, (number, value) in changes if number > known.last_change
            ]
            known.last_change = self._last_change
        stale = {
            id(table)
            for i, (table, name) in enumerate(self.others)
            if self._is_uncounted[i] or _is_other(known.others.get(i), _state(table, name))
        }
        if not attributes and not stale:
            return NO_CHANGES
        others, has_moved = [], False
        # Slots keep them, beyond the mode that is on now.
        with torch.inference_mode(mode=False):
            for i, (table, name) in enumerate(self.others if stale else ()):
                if id(table) in stale:
                    before, now = known.others.get(i), _state(table, name)
                    known.others[i] = now
                    has_moved |= before is None or before[0] is not now[0] or before[2] != now[2]
                    tensor = table[name]
                    others.append((i, None if tensor is None else tensor.detach().clone()))
        if has_moved:
            self._is_uncounted = self._find_uncounted()
        return Changes(attributes, others)


def place_of(tensor: torch.Tensor) -> object:
    """Where it lies, and how: what an assignment to its `data` changes, which gives it no other
    version. Nothing where there is no such place."""
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except RuntimeError:  # it is sparse, nested or of a subclass that has none
        return None


def _storage_of(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # likewise
        return None


def _mark(tensor: torch.Tensor) -> object:
    """What becomes another one when somebody writes to the tensor, as far as that is counted."""
    return _writes_to(tensor, unknown=0), place_of(tensor)


def _writes_to(tensor: torch.Tensor, unknown: int = UNKNOWN) -> tuple[int, int]:
    version = unknown if tensor.is_inference() else version_of(tensor)
    return version, UNVERSIONED.number_of(tensor)


def tensors_held_by(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """The tensors that are attributes, or in containers that are, each once."""
    held = {
        id(each): each
        for module in modules
        for name, value in module.__dict__.items()
        if name not in _TABLES_OF_TORCH
        for each in _tensors_in(value)
    }
    return list(held.values())


def _tensors_in(value: object) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return ()
    return [each for each in value if isinstance(each, torch.Tensor)]


def _state(table: dict[str, Any], name: str) -> _State:
    tensor = table.get(name)
    if tensor is None:
        return None, (0, 0), None
    return tensor, _writes_to(tensor), place_of(tensor)


def _overlaps(places: Iterable[TableEntry], leaves: Iterable[torch.Tensor]) -> list[bool]:
    """Says of each of these tensors whether it lies where one of `leaves` does. Then it changes
    with each step, and nobody counts that."""
    taken: dict[int, list[tuple[int, int]]] = {}
    for leaf in leaves:
        address, *span = _span(leaf)
        taken.setdefault(address, []).append((span[0], span[1]))
    found = []
    for table, name in places:
        tensor = table[name]
        address, start, end = (0, 0, 0) if tensor is None else _span(tensor)
        found.append(any(start < other[1] and other[0] < end for other in taken.get(address, ())))
    return found


def _may_be_statistics(buffers: dict[str, torch.Tensor | None]) -> bool:
    """Whether several of a submodule's buffers look like a mean and a variance, as
    `torch.nn.functional.batch_norm` writes them, and none like a counter."""
    tensors = [each for each in buffers.values() if each is not None]
    lines = [each.shape for each in tensors if each.is_floating_point() and each.dim() == 1]
    has_counter = any(each.dtype == torch.long and not each.dim() for each in tensors)
    return len(lines) > len({*lines}) and not has_counter


def _span(tensor: torch.Tensor) -> tuple[int, int, int]:
    """The address of a tensor's storage, and of its own beginning and end; zeros if it has none."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0, 0, 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((count - 1) * stride for count, stride in sizes)
    start = tensor.data_ptr()
    return tensor.untyped_storage().data_ptr(), start, start + length * tensor.itemsize


def _is_other(old: _State | None, new: _State) -> bool:
    return old is None or old[0] is not new[0] or old[1:] != new[1:] or new[1][0] == UNKNOWN


def _differs(now: Any, before: Any) -> bool:
    """Whether two containers differ. Comparing them compares what is identical by identity only;
    what cannot be compared with what was there before, two tensors, is something else."""
    try:
        return bool(now != before)
    except Exception:  # noqa: BLE001 - a comparison of users' objects may raise anything
        return True


def _is_plain(value: Any, depth: int = 0) -> bool:
    kind = type(value)
    if kind in _ATOMS:
        return True
    if depth == _DEEPEST:
        return False
    if kind in (tuple, list, set, frozenset):
        return all(_is_plain(each, depth + 1) for each in value)
    if kind is dict:
        return all(_is_plain(k, depth + 1) and _is_plain(v, depth + 1) for k, v in value.items())
    return False
