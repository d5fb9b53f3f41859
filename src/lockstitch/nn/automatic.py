"""What `DataParallel` does when it is not told on which slots: it tries, and keeps the fastest.

A program must not change by that. So slots are tried only for training steps whose arguments and
outputs are tensors of one batch, of a module without batch statistics and hooks, that draws no
random numbers and writes no buffers, which is seen in the plain steps. The first output of each
kind of slots is compared with the plain module's, and so is the next one after the program has
changed the module: it may have got hooks, batch statistics, or a flag by which it does something
else. All else runs plainly, and so does a step that fails on slots, in its second attempt.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lockstitch.attach.logs import ProcessLog
from lockstitch.devices.kinds import HOST
from lockstitch.errors import repr_of
from lockstitch.modes import plain_modes
from lockstitch.nn import parallel
from lockstitch.nn.calibration import Calibration
from lockstitch.nn.parallel.containers import tensors_within
from lockstitch.nn.replica_pool import ReplicaPool
from lockstitch.nn.slots import generators
from lockstitch.nn.slots.forkable import obstacle
from lockstitch.nn.slots.kinds import factory_for
from lockstitch.nn.slots.shared_leaves import is_with_slots
from lockstitch.torch_internals.autograd import queue_callback
from lockstitch.torch_internals.modes import len_dispatch_stack, peek_interpreter_stack
from lockstitch.torch_internals.modules import NormBase, has_hooks
from lockstitch.torch_internals.owners import storage_users
from lockstitch.torch_internals.tensors import version_of

if TYPE_CHECKING:
    from lockstitch.nn.calibration import Step

PLAIN = "plain"
_MOST_SLOTS = 8
_FREE_COMPARISONS = 8
_STEPS_FOR_EACH = 10
_ATOMS = (bool, int, float, complex, str, type(None), torch.dtype)
_log = ProcessLog(__name__)


class Automatic:
    """Runs a module plainly or on `slots` slots of the CPU, as `calibration` says; the default is
    as many slots as torch has threads, eight at most."""

    def __init__(
        self, dim: int, slots: int | None = None, calibration: Calibration | None = None
    ) -> None:
        self.dim = dim
        self.count = slots or min(torch.get_num_threads(), _cores(), _MOST_SLOTS)
        ways = [PLAIN, "thread", *([] if obstacle() else ["fork"])]
        self.calibration = calibration or Calibration(ways)
        if self.count < 2 or torch.are_deterministic_algorithms_enabled():
            self.calibration.keep_default()
        self._pools: dict[str, ReplicaPool] = {}
        self._compared: dict[str, int] = {}
        """By kind of slots, how often the program had changed the module when outputs were last
        compared."""
        self._steps = self._comparisons = 0
        self._has_looked = False
        self._signature: Any = None

    def __reduce__(self) -> Any:
        return Automatic, (self.dim,)  # a copy finds out for itself

    @property
    def is_plain(self) -> bool:
        """Whether the module runs plainly from now on."""
        return self.calibration.choice == PLAIN

    @property
    def pools(self) -> list[ReplicaPool]:
        """The pools of slots that have been made and are still wanted."""
        return list(self._pools.values())

    def close(self) -> None:
        """Ends all slots."""
        for pool in self._pools.values():
            pool.close()

    def call(self, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one forward pass."""
        size = self._size_of_batch(module, inputs, kwargs)
        if size is None:
            return call_plainly(module, inputs, kwargs)
        choice = self.calibration.choice
        if choice is not None:
            # A loser's slots end when nobody can go back through them any more.
            self._pools = {way: pool for way, pool in self._pools.items() if way == choice}
        pool = self._pool(module)
        way = self.calibration.way
        if pool is None:
            return self._run_plainly(module, inputs, kwargs, size)
        changes = pool.changes_by_program
        is_new = self._compared.get(way) != changes
        if is_new and not self._is_worth_comparing(module):
            self.calibration.keep_default()
            self._pools = {}
            return call_plainly(module, inputs, kwargs)
        self._steps += 1
        numbers = torch.get_rng_state() if is_new else None
        try:
            step = self.calibration.begin()
            output = self._run_on(pool, inputs, kwargs, size)
            if is_new:
                _compare(output, module, inputs, kwargs)
        except Exception as error:  # noqa: BLE001 - of whatever kind: it is raised again, or logged
            reason = repr_of(error)
        else:
            self._compared[way] = changes
            self._finish(step, output)
            return output
        if numbers is not None:  # the plain module draws what it would have drawn
            torch.set_rng_state(numbers)
        return self._run_instead(module, inputs, kwargs, reason)

    def _is_worth_comparing(self, module: nn.Module) -> bool:
        """Whether a module that has changed, or is new, may run on slots at all, and does not
        change all the time."""
        self._comparisons += 1
        is_rare = (
            self._comparisons <= _FREE_COMPARISONS
            or self._comparisons * _STEPS_FOR_EACH <= self._steps
        )
        return is_rare and _may_be_cut(module)

    def _pool(self, module: nn.Module) -> ReplicaPool | None:
        """The slots for the next step, or none where it is to be plain."""
        while (way := self.calibration.way) != PLAIN:
            pool = self._pools.get(way)
            if not self._has_looked:
                self._has_looked = True
                if _is_seen_elsewhere(module):
                    self._give_up("fork")
                    continue
            if pool is None or pool.module is not module:
                factories = [factory_for(way)] * (self.count - 1)
                pool = ReplicaPool(module, factories, fills_unused=False)
            try:
                pool.make_slots()
            except Exception as error:  # noqa: BLE001 - of whatever kind: then without such slots
                _log.info("DataParallel: no %s slots for this module: %r", way, error)
                pool.close()
                self._give_up(way)
            else:
                self._pools[way] = pool
                return pool
        return None

    def _give_up(self, way: str) -> None:
        self._pools.pop(way, None)
        self.calibration.reject(way)

    def _run_on(
        self, pool: ReplicaPool, inputs: tuple[Any, ...], kwargs: dict[str, Any], size: int
    ) -> Any:
        devices = [HOST] * self.count
        cut, named = parallel.scatter_kwargs(inputs, kwargs, devices, self.dim)
        outputs = pool.run(list(zip(cut, named, strict=True)))
        most = -(-size // self.count)
        for number, output in enumerate(outputs):
            if not _is_batch(output, min(most, size - number * most), self.dim):
                raise TypeError("the module's output is not a batch as large as its inputs")
        return parallel.gather(outputs, HOST, self.dim)

    def _run_instead(
        self,
        module: nn.Module,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        reason: str,
    ) -> Any:
        """The module's own exception comes again; anything else was the slots'."""
        output = call_plainly(module, inputs, kwargs)
        way = self.calibration.way
        _log.info("DataParallel: no more %s slots for this module: %s", way, reason)
        self._give_up(way)
        return output

    def _run_plainly(
        self, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], size: int
    ) -> Any:
        """A plain step that counts, and shows what the module does."""
        numbers = generators.fingerprint()
        versions = [(each, version_of(each)) for each in module.buffers()]
        step = self.calibration.begin()
        output = call_plainly(module, inputs, kwargs)
        self._finish(step, output)
        if (
            not _is_batch(output, size, self.dim)
            or generators.fingerprint() != numbers
            or any(version_of(each) != version for each, version in versions)
        ):
            self.calibration.keep_default()
        return output

    def _finish(self, step: Step, output: Any) -> None:
        """Sees to it that the step's end is noticed."""
        calibration = self.calibration
        calibration.end_forward(step)
        if calibration.choice is not None:
            return

        def begin(_: torch.Tensor) -> None:
            if calibration.begin_backward(step):
                queue_callback(lambda: calibration.end_backward(step))

        for tensor in tensors_within(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(begin)  # type: ignore[no-untyped-call]

    def _size_of_batch(
        self, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int | None:
        """Returns the size of the batch of a call that slots may take a part of; None for any
        other."""
        if not _is_ordinary_training():
            return None
        sizes = set()
        for value in (*inputs, *kwargs.values()):
            if not _is_known(value):
                return None
        for tensor in tensors_within((inputs, kwargs)):
            if not -tensor.dim() <= self.dim < tensor.dim():
                return None
            sizes.add(tensor.shape[self.dim])
        if len(sizes) != 1 or min(sizes) < self.count:
            return None
        names = {name: _kind(value) for name, value in kwargs.items()}
        signature = (module.training, list(map(_kind, inputs)), names)
        if self._signature is None:
            self._signature = signature
            if not _may_be_cut(module):
                self.calibration.keep_default()
        if self._signature != signature or self.is_plain:
            return None
        return sizes.pop()


def call_plainly(module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the module with all of its arguments, without `Replicate` and `Shard`."""
    if not kwargs and len(inputs) == 1 and type(inputs[0]) is torch.Tensor:
        return module(inputs[0])  # the usual call, in a third of the time
    return module(*_unmarked(inputs), **_unmarked(kwargs))


def _compare(
    output: Any, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises if the plain module, called with the same, returns anything else."""
    with torch.no_grad():
        expected = list(tensors_within(call_plainly(module, inputs, kwargs)))
    for ours, plain in zip(tensors_within(output), expected, strict=True):
        # What is rounded otherwise is the same; what depends on other rows is not.
        tolerance = 16 * torch.finfo(plain.dtype).eps ** 0.75 if plain.is_floating_point() else 0
        scale = plain.abs().max().item() if tolerance and plain.numel() else 0
        torch.testing.assert_close(
            ours.detach(), plain, rtol=tolerance, atol=tolerance * scale, equal_nan=True
        )


def _unmarked(arguments: Any) -> Any:
    if not _has_marks(arguments):
        return arguments
    (part,) = parallel.scatter((arguments,), [-1])
    return part[0]


def _has_marks(value: Any) -> bool:
    kind = type(value)
    if kind in (parallel.Replicate, parallel.Shard):
        return True
    if kind in (tuple, list):
        return any(map(_has_marks, value))
    return kind is dict and any(map(_has_marks, value.values()))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_ordinary_training() -> bool:
    """Returns whether this thread builds a graph, and nothing looks on that slots are hidden
    from."""
    return (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and threading.current_thread() is threading.main_thread()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and len_dispatch_stack() == 0
        and peek_interpreter_stack() is None
    )


def _may_be_cut(module: nn.Module) -> bool:
    tensors = [*module.parameters(), *module.buffers()]
    return (
        any(each.requires_grad for each in tensors)
        and all(each.device == HOST for each in tensors)
        and not any(isinstance(each, NormBase) or has_hooks(each) for each in module.modules())
    )


def _is_seen_elsewhere(module: nn.Module) -> bool:
    """Returns whether others than the module look at the memory of its parameters: views, arrays,
    other processes. They would be left behind when it moves to where forked slots see it."""
    return any(
        _has_lent_memory(each) or _uses_of_memory(each) > _OWN_USES
        for each in module.parameters()
        if each.requires_grad and not is_with_slots(each)
    )


def _has_lent_memory(tensor: torch.Tensor) -> bool:
    """Returns whether its memory is not torch's own (an array's, a file's), or is shared with
    processes."""
    storage = tensor.untyped_storage()
    return storage.is_shared() or not storage.resizable()


def _uses_of_memory(tensor: torch.Tensor) -> int:
    """Returns how many look at it: the tensor, its views, holders of the storage as such, and this
    look."""
    storage = tensor.untyped_storage()
    return storage_users(tensor) + sys.getrefcount(storage)


with plain_modes():
    _OWN_USES = _uses_of_memory(nn.Parameter(torch.zeros(1)))


def _kind(value: Any) -> Any:
    """Returns what must be the same in two calls for one to say something of the other."""
    return value if type(value) in (bool, str, type(None)) else type(value)


def _is_known(value: Any) -> bool:
    kind = type(value)
    if kind in (torch.Tensor, nn.Parameter):
        return bool(value.device == HOST and value.layout == torch.strided)
    if kind in (tuple, list):
        return all(map(_is_known, value))
    if kind is dict:
        return all(map(_is_known, value.values()))
    if kind is parallel.Replicate:
        return _is_known(value.value)
    return kind in _ATOMS


def _is_batch(output: Any, size: int, dim: int) -> bool:
    """Returns whether `output` consists of tensors with `size` elements along `dim`."""
    if isinstance(output, torch.Tensor):
        is_known = type(output) is torch.Tensor and -output.dim() <= dim < output.dim()
        return is_known and output.shape[dim] == size
    if isinstance(output, (tuple, list)):
        return all(_is_batch(each, size, dim) for each in output)
    if isinstance(output, dict):
        return all(_is_batch(each, size, dim) for each in output.values())
    return output is None
