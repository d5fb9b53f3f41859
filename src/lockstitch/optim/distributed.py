"""`DistributedOptimizer`: one ordinary optimizer on each worker that owns parameters, one `step`
for all.

    trainer                                   owner "ps1"          owner "ps2"
    DistributedOptimizer(SGD, refs, lr=0.1) ─→ LocalOptimizer       LocalOptimizer
    param_groups[0]["lr"] = 0.01               (kept until the next step)
    step(context_id)                        ─→ step(gradients)      step(gradients)     in parallel

Only names of contexts and references cross: gradients lie already where their parameters are, since
a backward pass leaves them there (`autograd.get_gradients`).
"""

from __future__ import annotations

import contextlib
import copy
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch.optim import Optimizer

from lockstitch.optim import owners
from lockstitch.optim.gradients import checked_contexts
from lockstitch.optim.groups import (
    NAMES,
    PARAMS,
    ParameterGroup,
    by_owner,
    read_group,
    read_groups,
    shown,
)
from lockstitch.optim.states import Share, join_states, split_state
from lockstitch.rpc import RRef
from lockstitch.torch_internals.optimizers import state_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lockstitch.ids import WorkerInfo
    from lockstitch.optim.gradients import ContextIds
    from lockstitch.optim.groups import GivenGroup, Part
    from lockstitch.optim.local import LocalOptimizer

_ELSEWHERE: Final = {
    "state": "each owner of parameters has an optimizer of its own; state_dict() shows what all of "
    "them have, and load_state_dict() changes it",
}
"""What of an ordinary optimizer is not here, and why."""


_STATES, _WHEN = ("state_dict", "load_state_dict"), ("pre", "post")


class DistributedOptimizer(Optimizer):
    """Applies `optimizer_class` to parameters scattered over workers.

    `optimizer_class`: any `torch.optim.Optimizer` class that steps without a closure, which LBFGS
    does not; `params_rref`: references to the parameters, leaf tensors of any shape and dtype,
    owned by any workers, this one included; or, as for torch's optimizers, pairs of a name and a
    reference, or dicts with these under "params" and options of their own. `args` and `kwargs` go
    to the constructor on each owner. What a constructor raises is raised here, and `TypeError` for
    anything else than such a class and references.

    It is an `Optimizer` to learning-rate schedulers, which change `param_groups`. What is assigned
    there goes to the owners with the next step, or when it is read: one message to each, in which
    no state travels. Hooks run on this worker.

    Steps of several optimizers, also of several trainers, on parameters of one owner take turns. A
    step may come while other trainers' forward and backward passes are in flight: updates are those
    of Hogwild (`lockstitch.optim.local` says what this means for the numbers).

        >>> with autograd.context() as context_id:
        ...     autograd.backward(context_id, [model(batch).sum()])
        ...     optimizer.step(context_id)
    """

    remote_optimizers: list[RRef[LocalOptimizer]]
    """References to the local optimizers, one for each owner."""
    param_groups: list[ParameterGroup]  # type: ignore[assignment]
    """A view of each group: see `ParameterGroup`."""
    _made: tuple[Callable[..., Optimizer], tuple[Any, ...], dict[str, Any]]
    """What each owner's optimizer is made of, beside its parameters."""
    _shares: list[Share]
    """For each owner, which groups and parameters it has."""
    _sending: threading.RLock
    """Held while changed options are on their way, so that the latest arrive last."""

    def __init__(
        self,
        optimizer_class: Callable[..., Optimizer],
        params_rref: Iterable[RRef[torch.Tensor]]
        | Iterable[tuple[str, RRef[torch.Tensor]]]
        | Iterable[dict[str, Any]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if not callable(optimizer_class):
            raise TypeError(
                "optimizer_class is a class, such as torch.optim.SGD, which each owner of "
                f"parameters makes its optimizer of, not {optimizer_class!r}"
            )
        if isinstance(params_rref, RRef):
            raise TypeError(
                "params_rref is a list of references to parameters, not one reference: where it "
                "refers to a module, say parameters_of(it)"
            )
        made = (optimizer_class, args, kwargs)
        self.__setstate__(
            {"made": made, "shares": [], "remote_optimizers": [], "defaults": {}, "groups": []}
        )
        self._add_groups(read_groups(params_rref))

    def __getattr__(self, name: str) -> NoReturn:
        """Tells whoever looks for what an ordinary optimizer has."""
        advice = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}{advice}",
            name=name,
            obj=self,
        )

    def __repr__(self) -> str:
        name = getattr(self._made[0], "__name__", repr(self._made[0]))
        where = ", ".join(owner.name for owner in self._owners) or "no worker"
        return f"<{name} on {where}> {super().__repr__()}"

    def __getstate__(self) -> dict[str, Any]:
        """What crosses to another worker: there it is another handle of the same optimizer, with
        views and hooks of its own."""
        self._send()
        return {
            "made": self._made,
            "shares": self._shares,
            "remote_optimizers": self.remote_optimizers,
            "defaults": self.defaults,
            "groups": [{**group} for group in self.param_groups],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._made = state["made"]
        self._shares = state["shares"]
        self._sending = threading.RLock()
        self.remote_optimizers = state["remote_optimizers"]
        # Makes the tables of hooks, and has each step call the hooks.
        super().__setstate__({"defaults": state["defaults"], "param_groups": []})
        for group in state["groups"]:
            self._show_group(group.pop(PARAMS), group.pop(NAMES, None), group)

    # ------------------------------------------------------------ steps

    def step(self, context_id: ContextIds) -> None:  # type: ignore[override]
        """Lets each owner update its parameters by the gradients of the autograd context
        `context_id`, all owners in parallel; returns when all have.

        Several contexts, `step([first, second])`, count as one: their gradients are added up in the
        first, and taken out of the others. Parameters without a gradient stay as they are.

        Raises `RuntimeError` for an unknown context, and what an owner's optimizer raised; when
        several failed, the first one's exception, with notes about the others. It says which owners
        have stepped.
        """
        contexts = checked_contexts(context_id)
        with self._changes_taken() as changes:
            outcomes = owners.ask_owners(
                self.remote_optimizers, owners.step, [(contexts, each) for each in changes]
            )
            answers = owners.values(outcomes, "stepped")
        for share, changed in zip(self._shares, answers, strict=True):
            for number, options in changed.items():
                self._show_options(share, number, options)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: gradients belong to an autograd context, and each new one begins without
        any."""

    # ------------------------------------------------------------ groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters: references under "params", and options. Raises what the
        constructor does; no owner has the group then."""
        self._add_groups([read_group(param_group, "of the group")])

    def _add_groups(self, given: list[GivenGroup]) -> None:
        _check_names([NAMES in view for view in self.param_groups], given)
        parts = by_owner(given, len(self.param_groups), sum(self._sizes))
        told: dict[int, dict[str, Any]] = {}
        known = dict(zip(self._owners, self._shares, strict=True))
        for owner, made in zip(parts, self._ask_to_add(parts), strict=True):
            reference, options, defaults = made
            if not known:
                self.defaults = defaults
            if owner not in known:
                known[owner] = Share([], [])
                self._shares.append(known[owner])
                self.remote_optimizers.append(reference)
            for part, its_options in zip(parts[owner], options, strict=True):
                known[owner].add(part.group, part.positions)
                told.setdefault(part.group, its_options)
        for number, group in enumerate(given, len(self.param_groups)):
            options_of_none = {**self.defaults, **group.options}
            self._show_group(group.references, group.names, told.get(number, options_of_none))
        views = self.param_groups[-len(given) :] if given else []
        _share(views, [{**self.defaults, **group.options} for group in given], self.defaults)

    def _ask_to_add(self, parts: dict[WorkerInfo, list[Part]]) -> list[owners.Made]:
        """Has the owners add their parts, or make their optimizers; all or none."""
        optimizer_class, args, kwargs = self._made
        known = dict(zip(self._owners, self.remote_optimizers, strict=True))
        futures = []
        for owner, own in parts.items():
            given = [tuple(part.given) for part in own]
            if owner in known:
                question: Any = (owner, owners.add_groups, (known[owner], given))
            else:
                question = (owner, owners.new_optimizer, (optimizer_class, given, args, kwargs))
            futures.append(question)
        outcomes = owners.ask_each(futures)
        if any(outcome.error is not None for outcome in outcomes):
            taken_back = [
                (each.owner, owners.remove_groups, (known[each.owner], len(parts[each.owner])))
                for each in outcomes
                if each.error is None and each.owner in known
            ]
            owners.ask_each(taken_back)
        return owners.values(outcomes)

    @property
    def positions(self) -> list[list[int]]:
        """For each of `remote_optimizers`, which numbers its parameters have among all."""
        return [share.positions for share in self._shares]

    @property
    def _owners(self) -> list[WorkerInfo]:
        return [reference.owner() for reference in self.remote_optimizers]

    @property
    def _sizes(self) -> list[int]:
        """How many parameters each group has."""
        return [len(group[PARAMS]) for group in self.param_groups]

    # ------------------------------------------------------------ options

    def _show_group(
        self, references: list[RRef[torch.Tensor]], names: list[str] | None, options: dict[str, Any]
    ) -> None:
        view = ParameterGroup(references, names, self._send)
        view.show(options)
        self.param_groups.append(view)

    def _show_options(self, share: Share, number: int, options: dict[str, Any]) -> None:
        """Has the view of a group show options that an owner has told, if it is the group's first
        owner."""
        group = share.groups[number]
        if next(each for each in self._shares if group in each.groups) is share:
            self.param_groups[group].show(options)

    def _send(self) -> None:
        """Sends what was assigned to options, to those whose groups it concerns."""
        with self._changes_taken() as changes:
            questions = [
                (reference.owner(), owners.change_options, (reference, change))
                for reference, change in zip(self.remote_optimizers, changes, strict=True)
                if change
            ]
            owners.values(owners.ask_each(questions))

    @contextlib.contextmanager
    def _changes_taken(self) -> Iterator[list[owners.Changes]]:
        """What was assigned to options, for each owner; within, it is being sent. What has not
        reached all, because of an exception, will be sent again."""
        with self._sending:
            taken = {n: each.take_change() for n, each in enumerate(self.param_groups)}
            changes = {number: change for number, change in taken.items() if change is not None}
            if changes:
                try:
                    yield [share.own(changes) for share in self._shares]
                except BaseException:
                    for number, change in changes.items():
                        self.param_groups[number].give_back(change)
                    raise
                return
        yield [{} for _ in self._shares]

    # ------------------------------------------------------------ states

    def state_dict(self) -> dict[str, Any]:
        """The states of all owners' optimizers as that of one optimizer over all parameters, in the
        order of the groups. So it fits the same parameters on other workers.

        The options of a group are those of its first owner. Tensors travel here. Raises
        `RuntimeError` where an owner does not answer: `PeerDiedError`, `RpcTimeoutError`.
        """
        for hook in state_hooks(self, "state_dict_pre"):
            hook(self)
        state = self.joined_state(owners.state_of)
        for hook in state_hooks(self, "state_dict_post"):
            changed = hook(self, state)
            state = state if changed is None else changed
        return state

    @property
    def has_state_hooks(self) -> bool:
        """Whether a user's function sees what is saved or loaded as a whole."""
        return any(state_hooks(self, f"{what}_{when}") for what in _STATES for when in _WHEN)

    def joined_state(
        self, state_of: Callable[..., dict[str, Any]], *arguments: object
    ) -> dict[str, Any]:
        """`state_dict`, of what `state_of(reference, changes, *arguments)` returns on each owner:
        the owner's state, in which something may stand for tensors."""
        with self._changes_taken() as changes:
            states = owners.values(
                owners.ask_owners(
                    self.remote_optimizers, state_of, [(each, *arguments) for each in changes]
                )
            )
        numbers = iter(range(sum(self._sizes)))
        copies: dict[int, Any] = {}  # of a tensor that groups share they share the copy
        groups = [
            {
                **group,
                **copy.deepcopy(group.options, copies),
                PARAMS: [next(numbers) for _ in group[PARAMS]],
            }
            for group in self.param_groups
        ]
        return join_states(states, self._shares, groups)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives each owner its part of a state of all parameters. Raises `ValueError` where the
        groups or the numbers of their parameters are others, and what an owner's optimizer
        raises."""
        state = state.copy()
        for hook in state_hooks(self, "load_state_dict_pre"):
            changed = hook(self, state)
            state = state if changed is None else changed
        self.load_parts(state, owners.load_state, [(part,) for part in self.parts_of(state)])
        for hook in state_hooks(self, "load_state_dict_post"):
            hook(self)

    def parts_of(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Each owner's part of a state of all parameters. Raises `ValueError` where the groups or
        the numbers of their parameters are others."""
        return split_state(state, self._shares, self._sizes)

    def load_parts(
        self,
        state: dict[str, Any],
        load_state: Callable[..., list[dict[str, Any]]],
        arguments: Sequence[tuple[Any, ...]],
    ) -> None:
        """`load_state_dict`, by `load_state(reference, *arguments)` on each owner, which returns
        the options of its groups."""
        with self._sending:
            told = owners.values(owners.ask_owners(self.remote_optimizers, load_state, arguments))
            for view, saved in zip(self.param_groups, state["param_groups"], strict=True):
                view.show(shown(saved), only=True)
            for share, options in zip(self._shares, told, strict=True):
                for number, its_options in enumerate(options):
                    self._show_options(share, number, its_options)
            _share(self.param_groups, state["param_groups"])


def _share(
    views: Sequence[ParameterGroup],
    groups: Sequence[dict[str, Any]],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Has views share the tensors that these groups share, with each other and with the defaults,
    as groups of torch do: by default all have the same, and who writes into it writes into that of
    each."""
    shared = {id(value): value for value in defaults.values()}
    for view, group in zip(views, groups, strict=True):
        for key, value in group.items():
            if isinstance(value, torch.Tensor) and key in view:
                view.share(key, shared.setdefault(id(value), view[key]))


def _check_names(have_names: list[bool], given: list[GivenGroup]) -> None:
    if len({*have_names, *(group.names is not None for group in given)}) > 1:
        raise ValueError("all optimizer param groups should be with/without names")
