"""Several modules at once, each in a thread of its own.

On CPU the threads share the cores: a module's operations get as many as there are for each. The
backward pass is the ordinary one, which on CPU runs in the thread that calls it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.devices import accelerators
from lockstitch.devices.kinds import HOST, is_host
from lockstitch.modes import in_callers_modes
from lockstitch.nn.parallel.places import Place, device_of
from lockstitch.torch_internals.modules import ExceptionWrapper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["get_a_var", "parallel_apply"]


def get_a_var(obj: Any) -> torch.Tensor | None:
    """The first tensor within `obj`, which may be made of lists, tuples and dicts."""
    if isinstance(obj, torch.Tensor):
        return obj
    children = obj.items() if isinstance(obj, dict) else obj
    if isinstance(obj, (list, tuple, dict)):
        return next((found for child in children if (found := get_a_var(child)) is not None), None)
    return None


def parallel_apply(
    modules: Sequence[Any],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[Mapping[str, Any]] | None = None,
    devices: Sequence[Place | None] | None = None,
) -> list[Any]:
    """The outputs of `modules[i](*inputs[i], **kwargs_tup[i])`, all computed at the same time, each
    with its device of `devices` as the current one (default: that of its first tensor), and on the
    stream there that is the caller's.

    An input that is neither list nor tuple is the only argument. Grad mode, autocast and context
    variables are the caller's. The first exception, in the order of modules, is raised with its
    type, after all have ended; `AssertionError` if the sequences are not of one length.
    """
    count = len(modules)
    named = [{} for _ in modules] if kwargs_tup is None else kwargs_tup
    places = [None] * count if devices is None else devices
    for name, given in (("inputs", inputs), ("kwargs_tup", named), ("devices", places)):
        if len(given) != count:
            raise AssertionError(
                f"The number of modules {count} is not equal to the number of {name} {len(given)}"
            )
    streams = _current_streams(places, inputs)
    threads_each = max(1, torch.get_num_threads() // max(1, count))

    def run(i: int) -> Any:
        device = _device_for(i, places[i], inputs[i])
        try:
            if count > 1 and is_host(device):
                torch.set_num_threads(threads_each)
            arguments = inputs[i] if isinstance(inputs[i], (list, tuple)) else (inputs[i],)
            with accelerators.made_current(device, streams.get(device)):
                return modules[i](*arguments, **named[i])
        except BaseException:  # noqa: BLE001 - raised by the caller
            return ExceptionWrapper(where=f"in replica {i} on device {device}")

    outputs = [run(0)] if count == 1 else _in_threads(run, count)
    for output in outputs:
        if isinstance(output, ExceptionWrapper):
            output.reraise()
    return outputs


def _in_threads(run: Any, count: int) -> list[Any]:
    """`run(0)`, `run(1)`, … in a thread each."""
    outputs: list[Any] = [None] * count
    call = in_callers_modes(run)

    def work(i: int) -> None:
        try:
            outputs[i] = call(i)
        except BaseException:  # noqa: BLE001 - raised by the caller
            outputs[i] = ExceptionWrapper(where=f"in replica {i}")

    threads = [threading.Thread(target=work, args=(i,), name=f"replica {i}") for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


def _device_for(i: int, place: Place | None, arguments: Any) -> torch.device:
    if place is not None:
        return device_of(place)
    tensor = get_a_var(arguments)
    if tensor is not None:
        return tensor.device
    if not accelerators.exist():
        return HOST
    raise RuntimeError(
        f"in replica {i}, no device was provided and no tensor input was found; "
        "device cannot be resolved"
    )


def _current_streams(
    places: Sequence[Place | None], inputs: Sequence[Any]
) -> dict[torch.device, torch.Stream]:
    """This thread's stream of each accelerator on which a module runs."""
    devices = []
    for place, given in zip(places, inputs, strict=True):
        tensor = get_a_var(given) if place is None else None
        if tensor is not None:
            devices.append(tensor.device)
        elif place is not None:
            devices.append(device_of(place))
    return accelerators.current_streams(devices)
