"""Averages of the weights of modules that live on other workers: EMA and SWA.

Each owner has a `torch.optim.swa_utils.AveragedModel` of its module, beside it. So no weight
travels, and the averages are torch's.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

from torch.optim import swa_utils

from lockstitch.optim import owners
from lockstitch.optim.parameters import RemoteHandle, reference_of
from lockstitch.optim.update_lock import UpdateLock
from lockstitch.rpc import RRef, rpc_sync
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch
    from torch import nn

    Module = RRef[Any] | RemoteHandle
    Modules = Module | Iterable[Module]


class AveragedModel:
    """Averages of one or several modules on other workers, as `torch.optim.swa_utils.AveragedModel`
    keeps one of a module here.

    `model`: a reference to a module or a `RemoteModule`, or several of these. The other arguments
    are torch's: by default it is the plain average of all updates (SWA); for an exponential one
    (EMA) give `multi_avg_fn=get_ema_multi_avg_fn(0.999)`. Raises `TypeError` for anything else than
    such modules, and what torch raises.

        >>> average = AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.999))
        >>> ...
        >>> optimizer.step(context_id)
        >>> average.update_parameters(model)
    """

    averages: list[RRef[swa_utils.AveragedModel]]
    """References to torch's averages, in the order of the modules. They may be called as modules,
    and registered for checkpoints."""

    def __init__(
        self,
        model: Modules,
        device: int | torch.device | None = None,
        avg_fn: Callable[..., Any] | None = None,
        multi_avg_fn: Callable[..., None] | None = None,
        use_buffers: bool = False,
    ) -> None:
        self._modules = _references_of(model)
        options = (device, avg_fn, multi_avg_fn, use_buffers)
        outcomes = owners.ask_owners(self._modules, _new_average, [(options,)] * len(self._modules))
        self.averages = owners.values(outcomes)

    def __repr__(self) -> str:
        where = ", ".join(repr(average.owner_name()) for average in self.averages)
        return f"<AveragedModel of {len(self.averages)} modules on {where}>"

    def update_parameters(self, model: Modules | None = None) -> None:
        """Takes the modules' weights of now into the averages, on all owners at once, and on each
        between two steps. `model`: the modules, by default those of the beginning; each must be on
        the worker of its average (`ValueError`)."""
        modules = self._modules if model is None else _references_of(model)
        owned = [average.owner() for average in self.averages]
        if [module.owner() for module in modules] != owned:
            raise ValueError(
                f"averages are where their modules are, on {[info.name for info in owned]}, but "
                f"those given are on {[module.owner_name() for module in modules]}"
            )
        arguments = [(module,) for module in modules]
        owners.values(owners.ask_owners(self.averages, _update, arguments), "averaged")

    def state_dict(self) -> dict[str, Any]:
        """The state of the average, as torch's; of several those of each under its number, as in
        "0.module.weight", which is that of a `ModuleList` of torch's. Tensors travel here; to have
        each written by its owner, give a checkpoint the references in `averages`."""
        states = owners.values(
            owners.ask_owners(self.averages, _state_of, [()] * len(self.averages))
        )
        if len(states) == 1:
            return states[0]
        return {f"{n}.{key}": each for n, state in enumerate(states) for key, each in state.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Gives each average its state. Raises `RuntimeError` where something is missing, of
        another shape, or of none of the averages."""
        parts: list[dict[str, Any]] = [{} for _ in self.averages]
        for key, value in state_dict.items():
            number, _, own = key.partition(".") if len(parts) > 1 else ("0", "", key)
            if not number.isdecimal() or int(number) >= len(parts):
                raise RuntimeError(f"{key!r} is of none of the {len(parts)} averages")
            parts[int(number)][own] = value
        owners.values(owners.ask_owners(self.averages, _load, [(part,) for part in parts]))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the average of the only module, where it is. Raises `ValueError` where there are
        several: call each by its reference in `averages`."""
        if len(self.averages) != 1:
            raise ValueError(
                f"there are averages of {len(self.averages)} modules: call each of them, as in "
                "averages[0].rpc_sync().forward(x)"
            )
        return self.averages[0].rpc_sync().forward(*args, **kwargs)


def update_bn(
    loader: Iterable[Any], model: Module | AveragedModel, device: int | torch.device | None = None
) -> None:
    """Lets batch normalisation in a module on another worker see all data once more, as one does
    with averaged weights. The owner asks for one batch of `loader` after the other.

    After `torch.optim.swa_utils.update_bn`. Raises `ValueError` for averages of several modules:
    what each of them is given, when all are run, is not in the loader.
    """
    modules = model.averages if isinstance(model, AveragedModel) else _references_of(model)
    if len(modules) != 1:
        raise ValueError(
            f"there are averages of {len(modules)} modules, and each is to see what it is given in "
            "the model: one after the other, as in update_bn(batches_for_the_first, averages[0])"
        )
    (module,) = modules
    rpc_sync(module.owner(), _update_bn, (module, RRef(_Source(loader)), device), timeout=0)


class _Source:
    """Batches, one after the other; it stays where the loader is."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._batches = iter(loader)

    def following(self) -> tuple[Any, ...]:
        """The next batch; nothing at the end."""
        return tuple(itertools.islice(self._batches, 1))


def _references_of(model: Modules) -> list[RRef[Any]]:
    if isinstance(model, (list, tuple)):
        return [reference_of(each) for each in model]
    return [reference_of(model)]


# ---------------------------------------------------------------- on the owners


@needed
def _new_average(
    module: RRef[nn.Module], options: tuple[Any, ...]
) -> RRef[swa_utils.AveragedModel]:
    with UpdateLock.of(current_worker()):
        return RRef(swa_utils.AveragedModel(module.local_value(), *options))


@needed
def _update(average: RRef[swa_utils.AveragedModel], module: RRef[nn.Module]) -> None:
    with UpdateLock.of(current_worker()):
        average.local_value().update_parameters(module.local_value())


@needed
def _state_of(average: RRef[swa_utils.AveragedModel]) -> dict[str, Any]:
    with UpdateLock.of(current_worker()):
        return {k: copy.deepcopy(v) for k, v in average.local_value().state_dict().items()}


@needed
def _load(average: RRef[swa_utils.AveragedModel], state: dict[str, Any]) -> None:
    with UpdateLock.of(current_worker()):
        average.local_value().load_state_dict(state)


@needed
def _update_bn(
    module: RRef[nn.Module], source: RRef[_Source], device: int | torch.device | None
) -> None:
    swa_utils.update_bn(_batches(source), module.local_value(), device)


def _batches(source: RRef[_Source]) -> Iterator[Any]:
    while batch := rpc_sync(source.owner(), _following, (source,)):
        yield batch[0]


@needed
def _following(source: RRef[_Source]) -> tuple[Any, ...]:
    return source.local_value().following()
