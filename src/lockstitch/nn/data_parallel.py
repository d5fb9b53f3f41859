"""`DataParallel`: one line, and a module works through each batch on several slots.

A call is four steps, each a method that a subclass may override, as in the original:

    scatter          the batch is cut, one part for each slot
    replicate        the module here, and remote replicas, which the other slots run
    parallel_apply   all at once, on the autograd graph (`replica_pool.py`, `stitch.py`)
    gather           the outputs are joined

Other than in the original nothing is replicated when nothing has changed, a backward pass runs on
all slots, and slots exist without an accelerator. On accelerators it is what the original is, by
way of `lockstitch.nn.parallel`: replicas for each call, one thread for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from lockstitch.attach.recorder import RECORDER
from lockstitch.devices import accelerators
from lockstitch.devices.kinds import HOST, is_host
from lockstitch.nn import parallel
from lockstitch.nn.automatic import Automatic, call_plainly
from lockstitch.nn.parallel.places import check_devices, device_of
from lockstitch.nn.replica_pool import ReplicaPool
from lockstitch.nn.slots.kinds import are_slots, factory_for, places_for
from lockstitch.nn.slots.nesting import is_inside
from lockstitch.nn.slots.remote import seen_from_here
from lockstitch.runtime.freed_memory import MOST_KEPT_BLOCK_BYTES, keep_freed_memory
from lockstitch.torch_internals.autograd import is_profiling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lockstitch.nn.replica_pool import Part
    from lockstitch.nn.slots.base import Slot
    from lockstitch.nn.slots.kinds import SlotPlace

__all__ = ["DataParallel", "data_parallel"]

M = TypeVar("M", bound=nn.Module)


class RemoteReplica:
    """One of the other slots, as `DataParallel.replicate` hands it out: calling it runs the module
    there, on the autograd graph."""

    def __init__(self, pool: ReplicaPool, number: int) -> None:
        self.pool = pool
        self.number = number

    def __repr__(self) -> str:
        return f"<RemoteReplica {self.number} of {self.pool!r}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the module in another slot can only be called, and has no {name!r} here. Replicas "
            "with all that a module has come from lockstitch.nn.parallel.replicate, and from "
            "DataParallel.replicate where a subclass overrides it"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.pool.run_on(self.number, (args, kwargs))


class DataParallel(nn.DataParallel[M]):
    """Runs `module` on several slots at once, each with its part of the batch.

        model = DataParallel(model, device_ids=[0, 1])
        loss = criterion(model(inputs), targets)
        loss.backward()                      # on both slots; gradients are summed in `model`

    - `module`: it stays what it is, with its own parameters, hooks and buffers. Slot 0 runs it
      itself, so buffers that it updates are kept.
    - `device_ids`: one entry for each slot. Numbers are accelerators where there are any and slots
      of the CPU where there are none, in processes; `"fork"` and `"thread"` choose processes or
      threads, names of workers of `lockstitch.rpc` those workers. The first slot is always the
      caller, which is put before a list that begins with another worker. Default: all accelerators;
      without any, slots of the CPU where they are faster than the plain module, see below.
    - `output_device`: where outputs are gathered; the default is the first slot's device.
    - `dim`: the dimension of tensors along which the batch is cut.

    A single entry means the plain module, on that device: `device_ids=["cpu"]`. Otherwise, on the
    CPU, the process keeps memory that torch frees for the next step, as far as glibc can: up to 62
    MiB.

    Without `device_ids` and accelerators the first training steps are taken plainly, on threads and
    on processes in turn, six times each, and timed. From then on the fastest way is taken; plain
    unless another one is faster by 5 %. `slots` tells which. Only training steps with arguments and
    outputs of one batch size are taken on slots, and only those of modules without batch statistics
    and hooks that draw no random numbers and write no buffers; all else is plain, and so is
    everything where torch has one thread or `torch.use_deterministic_algorithms` is on. Where slots
    fail the step is plain.

    Raises `TypeError` for what is no module and for `device_ids` that are no sequence; at the call
    `RuntimeError` where a parameter or buffer is not on the first slot's device, and what the
    module raises, as its own type, with the slot's traceback as its cause. A slot that dies raises
    `SlotDiedError` and is replaced at the next call.
    """

    module: M

    def __init__(
        self,
        module: M,
        device_ids: Sequence[SlotPlace] | None = None,
        output_device: int | str | torch.device | None = None,
        dim: int = 0,
    ) -> None:
        _check_module(module)
        nn.Module.__init__(self)  # of the original's only the type, for who asks `isinstance`
        self.dim = dim
        self.module = module
        self.device_ids: list[SlotPlace] = seen_from_here(  # type: ignore[assignment]
            _default_ids() if device_ids is None else _checked(device_ids)
        )
        self._places = places_for(self.device_ids)
        self.src_device_obj = self._places[0] if self._places else HOST
        self.output_device: Any = self.src_device_obj if output_device is None else output_device
        if len(self.device_ids) == 1:
            self.module.to(self.src_device_obj)
        elif is_host(self.src_device_obj):
            # Each step makes the same tensors again; fetching pages for them takes up to a third of
            # the time of a convolutional network.
            keep_freed_memory(MOST_KEPT_BLOCK_BYTES)
        self._pool: ReplicaPool | None = None
        is_free = device_ids is None and not self.device_ids and not _overrides_steps(type(self))
        self._automatic = Automatic(dim) if is_free else None

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module with its parts of `inputs` and `kwargs`, and joins what it returns."""
        if len(self.device_ids) < 2 or is_inside():
            automatic = self._automatic
            if automatic is None or is_inside():
                return self._run_on_one(inputs, kwargs)
            if automatic.is_plain:
                self._automatic = None
            return automatic.call(self.module, inputs, kwargs)
        if not is_host(self.src_device_obj):
            check_devices(self.module, self.src_device_obj)
        if RECORDER.spans is None and not is_profiling():
            return self._run(inputs, kwargs)
        with torch.autograd.profiler.record_function("DataParallel.forward"):
            return self._run(inputs, kwargs)

    def _run_on_one(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the module on a single device. On an accelerator the arguments are brought there, as
        in the original."""
        module = self.module
        if is_host(self.src_device_obj) or is_inside():
            return call_plainly(module, inputs, kwargs)
        parts, named_parts = self.scatter(inputs, kwargs, self.device_ids)
        if not parts and not named_parts:
            return module()
        return module(*parts[0], **named_parts[0])

    def _run(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts, named_parts = self.scatter(inputs, kwargs, self.device_ids)
        if not parts and not named_parts:
            parts, named_parts = [()], [{}]
        replicas = self.replicate(self.module, self.device_ids[: len(parts)])
        outputs = self.parallel_apply(replicas, parts, named_parts)
        return self.gather(outputs, self.output_device)

    def scatter(
        self,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        device_ids: Sequence[SlotPlace],
    ) -> tuple[Sequence[tuple[Any, ...]], Sequence[dict[str, Any]]]:
        """Cuts the arguments into one part for each of `device_ids` that gets one."""
        return parallel.scatter_kwargs(inputs, kwargs, places_for(device_ids), self.dim)

    def replicate(self, module: M, device_ids: Sequence[SlotPlace]) -> list[Any]:
        """Returns `module` itself for the first slot, and a `RemoteReplica` for each other one.

        On accelerators, and where this method is overridden or replaced, they are replicas that are
        modules: whoever replaces it looks into them, or writes to them."""
        places = places_for(device_ids)
        is_own = type(self).replicate is DataParallel.replicate and "replicate" not in vars(self)
        if not is_own or module is not self.module or not are_slots(device_ids[1:]):
            return list(parallel.replicate(module, places))
        pool = self._current_pool()
        return [module, *(RemoteReplica(pool, number) for number in range(1, len(device_ids)))]

    def parallel_apply(
        self,
        replicas: Sequence[Any],
        inputs: Sequence[Any],
        kwargs: Sequence[dict[str, Any]] | None,
    ) -> list[Any]:
        """Calls each of `replicas` with its part, all at once."""
        named = [{} for _ in inputs] if kwargs is None else kwargs
        pool = self._pool
        if pool is not None and replicas and replicas[0] is pool.module:
            remote = [each for each in replicas[1:] if isinstance(each, RemoteReplica)]
            if [replica.number for replica in remote] == list(range(1, len(replicas))):
                return pool.run(_parts(inputs, named))
        places = places_for(self.device_ids[: len(replicas)])
        return list(parallel.parallel_apply(replicas, inputs, named, places))

    def gather(self, outputs: Sequence[Any], output_device: Any) -> Any:
        """Joins the slots' outputs along `dim`, on `output_device`."""
        return parallel.gather(outputs, output_device, self.dim)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets the slots keep the gradients of parameters within the block; at its end these are
        added to `.grad`, once. For several backward passes before one optimizer step.

        As with `DistributedDataParallel` the forward pass must be in the block too: gradients of
        one that was made outside are added at once."""
        has_slots = len(self.device_ids) > 1 and are_slots(self.device_ids[1:])
        pool = self._current_pool() if has_slots else None
        if pool is None or not pool.syncs_gradients:
            yield
            return
        pool.syncs_gradients = False
        try:
            yield
        finally:
            pool.syncs_gradients = True
            pool.deliver_kept_gradients()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots beside the caller, as far as they have been made."""
        pools = [] if self._pool is None else [self._pool]
        if self._automatic is not None:
            pools += self._automatic.pools
        return tuple(slot for pool in pools for slot in pool.slots)

    def close(self) -> None:
        """Ends the slots. The next call makes new ones; without `close` they end with this object.
        Harmless when repeated. Gradients that they keep (`no_sync`) are added to `.grad` first."""
        if self._pool is not None:
            try:
                self._pool.deliver_kept_gradients()
            finally:
                self._pool.close()
        if self._automatic is not None:
            self._automatic.close()

    def _current_pool(self) -> ReplicaPool:
        if self._pool is None:
            factories = [factory_for(each) for each in self.device_ids[1:]]
            self._pool = ReplicaPool(self.module, factories, device=self.src_device_obj)
        return self._pool

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}


def data_parallel(
    module: nn.Module,
    inputs: Any,
    device_ids: Sequence[SlotPlace] | None = None,
    output_device: int | str | torch.device | None = None,
    dim: int = 0,
    module_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """One call of `module` over the slots `device_ids`, as `DataParallel` would make it; without
    an accelerator its slots are threads. `inputs`: the argument, or a tuple of arguments;
    `module_kwargs`: those with names. `output_device=-1` is the CPU.

    For more than one call `DataParallel` is cheaper: it keeps its slots.
    """
    args = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    ids = [
        "thread" if isinstance(each, int) and is_host(device_of(each)) else each
        for each in (_default_ids() if device_ids is None else _checked(device_ids))
    ]
    parallelized = DataParallel(module, ids, output_device, dim)
    return parallelized(*args, **dict(module_kwargs or {}))


def _overrides_steps(kind: type[DataParallel[Any]]) -> bool:
    names = ("scatter", "replicate", "parallel_apply", "gather")
    return any(getattr(kind, name) is not getattr(DataParallel, name) for name in names)


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        advice = ": make an instance of it first" if isinstance(module, type) else ""
        raise TypeError(f"module is a torch.nn.Module, not {module!r}{advice}")


def _checked(device_ids: object) -> Any:
    form = 'device_ids has one entry for each slot, as in [0, 1] or ["fork", "fork"]'
    if isinstance(device_ids, str):
        raise TypeError(f"{form}: {device_ids!r} is a text")
    if not isinstance(device_ids, Iterable):
        kind = type(device_ids).__name__
        raise TypeError(f"{form}: {device_ids!r} of type {kind!r} is not iterable")
    return device_ids


def _default_ids() -> Sequence[SlotPlace]:
    return accelerators.indices()


def _parts(inputs: Sequence[Any], named: Sequence[dict[str, Any]]) -> list[Part]:
    """An input that is no tuple or list is a single argument."""
    if len(inputs) != len(named):
        raise ValueError(f"{len(inputs)} positional but {len(named)} named parts")
    return [
        (tuple(each) if isinstance(each, (tuple, list)) else (each,), keywords)
        for each, keywords in zip(inputs, named, strict=True)
    ]
