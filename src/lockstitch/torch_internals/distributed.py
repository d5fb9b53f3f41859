"""What is private to torch.distributed, and to the reducer of DistributedDataParallel."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import distributed, nn
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.autograd import queue_callback
from lockstitch.torch_internals.probing import Cost, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.remote_device import _remote_device


def _takes_timeout(new_options: Callable[[], Any]) -> bool:
    options = new_options()
    before = options.timeout
    options.timeout = timedelta(seconds=7)
    return isinstance(before, timedelta) and options.timeout == timedelta(seconds=7)


def _gloo_options(address: str, timeout: timedelta, *, is_lazy: bool = False) -> Any:
    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address, lazy_init=is_lazy)]
    _set_timeout(options, timeout)
    return options


def _set_timeout(options: Any, timeout: timedelta) -> None:
    options._timeout = timeout


def _is_patient(set_timeout: Callable[[Any, timedelta], object]) -> bool:
    """Whether a group takes it from its options."""
    if not distributed.is_gloo_available():
        return set_timeout is _set_timeout
    gloo: Any = distributed.ProcessGroupGloo
    options = _gloo_options("127.0.0.1", timedelta(seconds=7))
    set_timeout(options, timedelta(seconds=3))
    group = gloo(distributed.HashStore(), 0, 1, options)
    return bool(group.options._timeout == timedelta(seconds=3))


class _GlooOptions(Protocol):
    def __call__(self, address: str, timeout: timedelta, *, is_lazy: bool = False) -> Any: ...


def _makes_a_group(options_at: _GlooOptions) -> bool:
    """Whether a group of one, made of these, reduces."""
    if not distributed.is_gloo_available():
        return options_at is _gloo_options  # there is nothing to try
    gloo: Any = distributed.ProcessGroupGloo
    tensor = torch.ones(2)
    options_at("127.0.0.1", timedelta(seconds=7), is_lazy=True)
    options = options_at("127.0.0.1", timedelta(seconds=7))
    if options._timeout != timedelta(seconds=7) or len(options._devices) != 1:
        return False  # before Gloo follows it into memory
    group = gloo(distributed.HashStore(), 0, 1, options)
    group.allreduce([tensor]).wait()
    return tensor.tolist() == [1.0, 1.0]


_groups = Names("reductions over several hosts", within=plain_modes)
AllgatherOptions: Any = _groups.take(
    "torch._C._distributed_c10d.AllgatherOptions",
    "be the options with which a group gathers, among them a timeout",
    _takes_timeout,
)
set_timeout: Callable[[Any, timedelta], None] = _groups.take(
    "torch.distributed.Backend.Options._timeout",
    "say how long a group waits for other ranks",
    _is_patient,
    reader=_set_timeout,
    cost=Cost.THOROUGH,
)
gloo_options: _GlooOptions = _groups.take(
    "torch.distributed.ProcessGroupGloo._Options, its _devices and _timeout",
    "be the options of a group of Gloo",
    _makes_a_group,
    reader=_gloo_options,
    cost=Cost.THOROUGH,
)


def _reads_places(place: Any) -> bool:
    named, numbered = place("ps/cpu"), place("rank:1")
    is_named = named.worker_name() == "ps" and named.device() == torch.device("cpu")
    return is_named and numbered.rank() == 1 and numbered.worker_name() is None


_places = Names("RemoteModule", within=plain_modes)
if TYPE_CHECKING:
    RemoteDevice = _remote_device
else:
    RemoteDevice = _places.take(
        "torch.distributed.remote_device._remote_device",
        'read "worker/device" and "rank:1/device"',
        _reads_places,
        cost=Cost.THOROUGH,
    )


def _parameters_of_reducer(module: DistributedDataParallel) -> list[nn.Parameter]:
    parameters, _ = module._build_params_for_reducer()  # type: ignore[no-untyped-call]
    return list(parameters)


def _claim_static_graph(module: DistributedDataParallel) -> bool:
    if not module.static_graph or module._static_graph_delay_allreduce_enqueued:
        return False
    module._static_graph_delay_allreduce_enqueued = True  # by us, and not by its graph
    return True


def _tell_reducer(module: DistributedDataParallel, index: int) -> None:
    reducer: Any = module.reducer
    reducer._autograd_hook(index)


def _reduce_at_the_end(module: DistributedDataParallel) -> None:
    reducer: Any = module.reducer
    queue_callback(reducer._delay_all_reduce)


@contextmanager
def _replica(*, static_graph: bool) -> Iterator[DistributedDataParallel]:
    """One of a group of one process, which must be in no other."""
    with tempfile.TemporaryDirectory() as folder:
        store = distributed.FileStore(str(Path(folder, "store")), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield DistributedDataParallel(nn.Linear(2, 1), static_graph=static_graph)
        finally:
            distributed.destroy_process_group()


def _orders_parameters(parameters_of: Callable[[DistributedDataParallel], Any]) -> bool:
    with _replica(static_graph=False) as module:
        return list(map(id, parameters_of(module))) == list(map(id, module.parameters()))


def _reduced_by(
    act: Callable[[DistributedDataParallel], object], *, static_graph: bool = False
) -> int:
    """How many elements of gradients a reducer reduces for which this is done in a pass."""
    reduced: list[int] = []
    with _replica(static_graph=static_graph) as module:
        module.register_comm_hook(None, lambda _state, bucket: _note(reduced, bucket))
        _claim_static_graph(module)
        module(torch.ones(1, 2))
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        root = torch.zeros((), requires_grad=True) * 1
        root.register_hook(lambda _gradient: _ignore(act(module)))  # type: ignore[no-untyped-call]
        root.backward()  # type: ignore[no-untyped-call]
    return sum(reduced)


def _note(reduced: list[int], bucket: Any) -> Any:
    reduced.append(bucket.buffer().numel())
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _ignore(_result: object) -> None:
    """A hook's result would be a gradient."""


def _tells(tell: Callable[[DistributedDataParallel, int], object]) -> bool:
    def act(module: DistributedDataParallel) -> None:
        for index in (1, 0):
            tell(module, index)

    return _reduced_by(act) == 3


def _ends_the_first_pass(reduce_at_the_end: Callable[[DistributedDataParallel], object]) -> bool:
    def act(module: DistributedDataParallel) -> None:
        for index in (1, 0):
            _tell_reducer(module, index)
        reduce_at_the_end(module)

    return _reduced_by(act, static_graph=True) == 3


def _claims_once(claim: Callable[[DistributedDataParallel], bool]) -> bool:
    """Whether it does, and the module then leaves the end of its first pass to us."""
    with _replica(static_graph=True) as module:
        is_first = claim(module)
        output = module(torch.ones(1, 2))
        return is_first and not claim(module) and "Delayed" not in type(output.grad_fn).__name__


_reducer = Names("DistributedDataParallel in a context of distributed autograd", within=plain_modes)
parameters_of_reducer: Callable[[DistributedDataParallel], list[nn.Parameter]] = _reducer.take(
    "DistributedDataParallel._build_params_for_reducer",
    "return the parameters in the order in which the reducer numbers them",
    _orders_parameters,
    reader=_parameters_of_reducer,
    cost=Cost.SLOW,
)
tell_reducer: Callable[[DistributedDataParallel, int], None] = _reducer.take(
    "Reducer._autograd_hook",
    "tell the reducer that the gradient of a parameter is there",
    _tells,
    reader=_tell_reducer,
    cost=Cost.SLOW,
)
reduce_at_the_end: Callable[[DistributedDataParallel], None] = _reducer.take(
    "Reducer._delay_all_reduce",
    "reduce at the end of the first pass, where the graph is static",
    _ends_the_first_pass,
    reader=_reduce_at_the_end,
    cost=Cost.SLOW,
)
claim_static_graph: Callable[[DistributedDataParallel], bool] = _reducer.take(
    "DistributedDataParallel._static_graph_delay_allreduce_enqueued",
    "say that somebody has seen to the end of the first pass, where the graph is static",
    _claims_once,
    reader=_claim_static_graph,
    cost=Cost.SLOW,
)


def _group_of_one(ask: Callable[[], object], noted: Callable[[str, Any], object]) -> None:
    """Makes a group of one process, which must be in no other, whose class is written in Python;
    asks something of it by torch's own functions, and ends it. What torch asks of the group, and
    what it tells who makes it, is noted."""

    def asked(name: str) -> Any:
        def answer(_group: Any, *_given: Any) -> _Done:
            noted(name, _given)
            return _Done()

        return answer

    def devices(group: Any) -> list[torch.device]:
        noted("_device_types", ())
        try:  # before torch knows the group: see `c10d.ProcessGroup`
            distributed.get_process_group_ranks(group)
        except KeyError:
            return []
        return [torch.device("cpu")]

    names = [each for pair in _SINGLE.values() for each in pair]
    methods = {name: asked(name) for name in (*names, "broadcast", "_get_backend")}
    methods |= {"_device_types": property(devices)}
    methods |= {name: lambda *_: "" for name in _TEXTS}
    base: Any = distributed.ProcessGroup
    kind = type("Probing", (base,), methods)

    def create(given: Any, _options: Any) -> Any:
        noted("options", given)
        return kind(given.group_rank, given.group_size)

    register: Any = distributed.Backend.register_backend
    register("lockstitch_probe", create, extended_api=True, devices=["cpu"])
    store = distributed.HashStore()
    distributed.init_process_group("lockstitch_probe", store=store, rank=0, world_size=1)
    try:
        ask()
    finally:
        distributed.destroy_process_group()


class _Done(distributed.Work):
    """An operation that is over."""

    def wait(self, *_: object) -> bool:
        return True


_TEXTS = ("getBackendName", "getGroupName", "getGroupDesc", "setGroupName", "setGroupDesc")
_SINGLE = {
    "all_gather_into_tensor": ("_allgather_base", "all_gather_single"),
    "reduce_scatter_tensor": ("_reduce_scatter_base", "reduce_scatter_single"),
}


def _is_of_groups(name: str, thing: object) -> bool:
    return bool(getattr(distributed.ProcessGroup, name) == thing)


def _is_asked_one_by_one(thing: object) -> bool:
    """Whether the functions of torch for one tensor ask for one of the two names that we have."""
    asked: list[str] = []

    def ask() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.13 has other names for the functions, too
            for function in _SINGLE:
                getattr(distributed, function)(torch.ones(2), torch.ones(2))

    _group_of_one(ask, lambda name, _: asked.append(name))
    is_asked = all(set(names) & set(asked) for names in _SINGLE.values())
    return is_asked and _is_of_groups("_allgather_base", thing)


def _is_asked_for_devices(thing: object) -> bool:
    """Whether that is asked where objects are sent."""
    asked: list[str] = []
    _group_of_one(
        lambda: distributed.broadcast_object_list([None], 0), lambda each, _: asked.append(each)
    )
    return "_device_types" in asked and _is_of_groups("_device_types", thing)


def _asks_for_a_backend(estimate: Any) -> bool:
    """Whether that asks a group for what reduces on a device."""
    asked: list[str] = []

    def ask() -> None:
        # What it is given in `_group_of_one` knows nothing of times.
        with suppress(AttributeError), estimate(device=torch.device("cpu")):
            pass

    _group_of_one(ask, lambda name, _: asked.append(name))
    return "_get_backend" in asked


def _is_asked_for_a_backend(thing: object) -> bool:
    return _is_of_groups("_get_backend", thing) and _asks_for_a_backend(_time_estimator)


def _tells_of_a_group(kind: Any) -> bool:
    """Whether who makes a group is told who is in it, and where they meet."""
    told: list[Any] = []
    _group_of_one(lambda: None, lambda name, given: told.append(given) if name == "options" else 0)
    (options,) = told
    return (
        type(options) is kind
        and (options.group_rank, options.group_size) == (0, 1)
        and list(options.global_ranks_in_group) in ([], [0])
        and isinstance(options.group_id, str)
        and isinstance(options.timeout, timedelta)
        and isinstance(options.store, Store)
    )


_python_groups = Names("the backend of torch.distributed", within=plain_modes)
_python_groups.take(
    "torch.distributed.ProcessGroup._allgather_base",
    "be asked for by all_gather_into_tensor, or else all_gather_single, and so for reduce_scatter",
    _is_asked_one_by_one,
    cost=Cost.SLOW,
)
_python_groups.take(
    "torch.distributed.ProcessGroup._device_types",
    "be asked on which devices objects may be sent",
    _is_asked_for_devices,
    cost=Cost.SLOW,
)
_time_estimator: Any = _python_groups.take(
    "torch.distributed.distributed_c10d._time_estimator",
    "ask a group for what reduces on a device",
    _asks_for_a_backend,
    cost=Cost.SLOW,
)
_python_groups.take(
    "torch.distributed.ProcessGroup._get_backend",
    "be asked for what reduces on a device",
    _is_asked_for_a_backend,
    cost=Cost.SLOW,
)
_python_groups.take(
    "torch._C._distributed_c10d._DistributedBackendOptions",
    "tell who makes a group where its ranks meet, and which they are",
    _tells_of_a_group,
    cost=Cost.SLOW,
)
PRIVATES = (
    *_groups.finish(),
    *_places.finish(),
    *_reducer.finish(),
    *_python_groups.finish(),
)
