"""The slots of one module, and one call over all of them.

Slots are made at the first call that needs them and kept; before each call a `ChangeTracker` says
what has changed in the module since. A slot that has died is replaced, and all are when the module
has become another one, or when making one of them has moved the parameters: the others may look at
where they were. A slot that is given up ends when nobody can go back through it any more.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.devices.kinds import HOST, is_host
from lockstitch.modes import Modes
from lockstitch.nn.parallel.places import check_devices
from lockstitch.nn.slots import generators
from lockstitch.nn.slots.base import Blueprint, Request
from lockstitch.nn.slots.lifting import fill, lift
from lockstitch.nn.slots.module_changes import ChangeTracker, KnownState
from lockstitch.nn.slots.nesting import inside
from lockstitch.nn.slots.openmp import end_idle_threads
from lockstitch.nn.stitch import Call
from lockstitch.torch_internals.autograd import queue_callback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from lockstitch.nn.slots.base import OwnPass, Slot, SlotFactory

Part = tuple["tuple[Any, ...]", "dict[str, Any]"]
"""Positional and named arguments for one slot."""


class OwnCall:
    """A forward pass of a slot that the caller runs itself (`Slot.own_pass`)."""

    def __init__(self, run: OwnPass, part: Part) -> None:
        self._run = run
        self._part = part
        self.written: Sequence[int] = ()

    def end(self) -> Any:
        """Runs the module; returns what it returned."""
        output, self.written = self._run(*self._part)
        return output


class ReplicaPool:
    """The slots beside the caller, one for each factory. `fills_unused`: whether a parameter that
    no slot used gets zeros as its gradient, as in the original, or none. `device`: the module's."""

    def __init__(
        self,
        module: nn.Module,
        factories: Sequence[SlotFactory],
        *,
        fills_unused: bool = True,
        device: torch.device = HOST,
    ) -> None:
        self.module = module
        self._device = device
        self.fills_unused = fills_unused
        self.syncs_gradients = True
        self.lock = threading.RLock()
        self._factories = list(factories)
        self._slots: list[Slot | None] = [None] * len(factories)
        self._known: list[KnownState] = []
        self._tracker: ChangeTracker | None = None
        self._numbers = itertools.count(1)
        self.in_flight: dict[int, Slot] = {}
        """The numbers of passes that somebody can still go back through, and their slots."""
        self._kept: dict[int, tuple[Slot, Sequence[torch.Tensor]]] = {}
        self._threads_before: int | None = None

    def __repr__(self) -> str:
        return f"<ReplicaPool of {len(self._slots) + 1}: {', '.join(self.names)}>"

    @property
    def names(self) -> list[str]:
        """The names of the slots as they are now."""
        return ["slot 0 (caller)"] + [each.name for each in self._slots if each is not None]

    @property
    def slots(self) -> list[Slot]:
        """The slots that have been made."""
        return [each for each in self._slots if each is not None]

    @property
    def changes_by_program(self) -> int:
        """How often the module was changed between two calls, as far as is known by now."""
        return 0 if self._tracker is None else self._tracker.changes_by_program

    def make_slots(self) -> None:
        """Makes those that are missing, before they are needed."""
        with self.lock:
            self._prepare(len(self._slots))

    def run(self, parts: Sequence[Part]) -> list[Any]:
        """Calls the module with each of `parts`, the first one here, and returns what it returned
        for each. The first slot that raised is the one whose exception is raised."""
        count = len(parts) - 1
        with self.lock:
            self._restore_threads()
            tracker = self._prepare(count)
            threads = torch.get_num_threads()
            share = self._share_of(threads)
            try:
                if share != threads:
                    end_idle_threads()
                    torch.set_num_threads(share)
                calls = self._post(tracker, parts[1:])
                with inside():
                    args, kwargs = parts[0]
                    outputs = [self.module(*args, **kwargs)]
                tracker.settle()
                for call, known in zip(calls, self._known, strict=False):
                    outputs.append(self._end(call, known))
                return outputs
            except Exception:
                raise
            except BaseException:
                # Interrupted: a slot may be in something that does not end.
                self.close()
                raise
            finally:
                if share != threads:
                    torch.set_num_threads(threads)

    def run_on(self, number: int, part: Part) -> Any:
        """Calls the module with `part` on a slot other than the caller's."""
        with self.lock:
            tracker = self._prepare(number)
            (call,) = self._post(tracker, [part], first=number)
            return self._end(call, self._known[number - 1])

    def _end(self, call: Call | OwnCall, known: KnownState) -> Any:
        output = call.end()
        for each in call.written:
            known.others.pop(each, None)  # it is sent again
        return output

    def _share_of(self, threads: int) -> int:
        """Returns how many of the caller's intra-op threads each slot may have: its part where all
        of them compute with the CPU."""
        if not is_host(self._device):
            return threads
        return max(1, threads // (len(self._slots) + 1))

    def _prepare(self, count: int) -> ChangeTracker:
        """Sees to it that the first `count` slots are there and can be told what has changed."""
        tracker = self._tracker
        if tracker is None or not tracker.look():
            for i in range(len(self._slots)):
                self._forget(i)
            check_devices(self.module, self._device)
            fresh = ChangeTracker(self.module)
            if tracker is not None:
                fresh.succeed(tracker)
            tracker = self._tracker = fresh
            self._known = [KnownState() for _ in self._slots]
        while (missing := self._first_missing(count)) is not None:
            self._replace(missing, tracker)
        return tracker

    def _first_missing(self, count: int) -> int | None:
        for i, slot in enumerate(self._slots[:count]):
            if slot is None or not slot.is_alive:
                return i
        return None

    def _replace(self, i: int, tracker: ChangeTracker) -> None:
        self._forget(i)
        threads = self._share_of(torch.get_num_threads())
        blueprint = Blueprint(
            self.module, tracker.leaves, threads, len(self._slots) + 1, self._device
        )
        # A slot outlives the modes in which it is made: what it makes now is for training too.
        with torch.inference_mode(mode=False):
            slot = self._factories[i](i + 1, blueprint)
        if tracker.refresh():
            for number, other in enumerate(self._slots):
                if other is not None and other.shares_parameters:
                    self._forget(number)  # it looks at where they were
        self._slots[i] = slot
        self._known[i] = tracker.known_state()

    def _forget(self, i: int) -> None:
        """Gives up a slot. If somebody can still go back through it, or it has kept gradients, it
        ends after that."""
        slot, self._slots[i] = self._slots[i], None
        if slot is None or id(slot) in self._kept or slot in self.in_flight.values():
            return
        slot.close()

    def _post(
        self, tracker: ChangeTracker, parts: Sequence[Part], first: int = 1
    ) -> list[Call | OwnCall]:
        """Begins the call on the slots from number `first` on."""
        builds_graph = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        state = generators.fingerprint(self._device)
        may_be_own = (
            builds_graph
            and self.syncs_gradients
            and tracker.is_quiet
            and not torch.is_autocast_enabled("cpu")  # whose cache the slots would share
        )
        modes: Modes | None = None
        calls: list[Call | OwnCall] = []
        for i, part in enumerate(parts, start=first - 1):
            slot = self._slots[i]
            assert slot is not None
            changes = tracker.changes(self._known[i])
            skeleton, tensors = lift(part)
            wants_gradient = [builds_graph and tensor.requires_grad for tensor in tensors]
            data = [tensor.data for tensor in tensors]
            if may_be_own and not changes and not any(wants_gradient):
                run = slot.own_pass(state, tracker.leaves, fills_unused=self.fills_unused)
                if run is not None:
                    calls.append(OwnCall(run, fill(skeleton, data)))
                    continue
            modes = modes or Modes.of_this_thread()
            request = Request(
                self.new_number(),
                skeleton,
                data,
                wants_gradient,
                modes,
                torch.get_default_dtype(),
                generators.seed_for(state, i + 1),
                state,
                changes,
            )
            call = Call(self, slot, request, tensors, tracker.leaves)
            call.begin(builds_graph=builds_graph)
            calls.append(call)
        return calls

    def new_number(self) -> int:
        """Returns the number for the next pass of a slot."""
        return next(self._numbers)

    def limit_threads_until_end_of_backward(self) -> None:
        """Leaves the slots their cores while a backward pass runs."""
        threads = torch.get_num_threads()
        share = self._share_of(threads)
        if share != threads and self._threads_before is None:
            self._threads_before = threads
            end_idle_threads()
            torch.set_num_threads(share)
            queue_callback(self._restore_threads)

    def _restore_threads(self) -> None:
        # A backward pass that failed has not called back.
        threads, self._threads_before = self._threads_before, None
        if threads is not None:
            torch.set_num_threads(threads)

    def note_kept_gradients(self, slot: Slot, leaves: Sequence[torch.Tensor]) -> None:
        """Gradients of `leaves` have stayed in `slot`."""
        if leaves:
            self._kept[id(slot)] = slot, leaves

    def deliver_kept_gradients(self) -> None:
        """Adds what stayed in the slots to the parameters' `.grad`, through their hooks."""
        with self.lock:
            kept, self._kept = list(self._kept.values()), {}
            for slot, leaves in kept:
                sums = slot.collect()
                pairs = [(leaf, g) for leaf, g in zip(leaves, sums, strict=False) if g is not None]
                for leaf, gradient in pairs:
                    if not leaf.requires_grad:  # frozen meanwhile
                        leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
                pairs = [(leaf, gradient) for leaf, gradient in pairs if leaf.requires_grad]
                if pairs:
                    torch.autograd.backward([leaf for leaf, _ in pairs], [g for _, g in pairs])

    def close(self) -> None:
        """Ends all slots, whatever they have kept; the next call makes new ones."""
        for i, slot in enumerate(self._slots):
            self._slots[i] = None
            if slot is not None:
                slot.close()
        self._kept.clear()
        self._tracker = None
