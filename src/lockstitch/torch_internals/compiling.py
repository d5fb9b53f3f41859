"""What is private to torch of functions and modules that `torch.compile` has compiled.

All of it takes seconds to import, so nothing is looked at before a program compiles.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.modules import BUFFERS, CHILDREN, children_of
from lockstitch.torch_internals.names import (
    COMPILED_OF,
    COMPILER_RULES,
    OPAQUE,
    REASON_OF_OPAQUE,
)
from lockstitch.torch_internals.probing import Cost, Names, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

_WITHIN: Final = "_orig_mod"


def _is_compiled(module: nn.Module) -> bool:
    return _WITHIN in children_of(module) and "dynamo_ctx" in vars(module)


def _tells_compiled(is_compiled: Callable[[nn.Module], bool]) -> bool:
    module: Any = torch.compile(nn.Linear(1, 1), backend="eager")
    return is_compiled(module) is True and is_compiled(nn.Linear(1, 1)) is False


def _copy_compiled(module: nn.Module) -> nn.Module:
    copy: nn.Module = object.__new__(type(module))
    tables = {name: dict(vars(module)[name]) for name in (BUFFERS, CHILDREN)}
    copy.__dict__.update(vars(module), **tables, _parameters={}, _is_replica=True)
    return copy


def _is_apart(copy_of: Callable[[nn.Module], nn.Module]) -> bool:
    """Whether a copy may get another module within, and torch takes it for a replica."""
    module: Any = torch.compile(nn.Linear(1, 1), backend="eager")
    copy: Any = copy_of(module)
    children_of(copy)[_WITHIN] = None
    is_same = children_of(module)[_WITHIN] is not None and type(copy) is type(module)
    return is_same and copy._is_replica is True


def _initialize(copy: nn.Module) -> None:
    copy._initialize()  # type: ignore[operator]


def _calls_its_own(initialize: Callable[[nn.Module], object]) -> bool:
    module: Any = torch.compile(nn.Linear(1, 1), backend="eager")
    children_of(module)[_WITHIN] = nn.Identity()
    initialize(module)
    return bool(module(torch.full((1,), 7.0)) == 7.0)


def _find_rules() -> Any:
    return resolve(COMPILER_RULES)


def _passes_over(find_rules: Callable[[], Any]) -> bool:
    """Whether this package is passed over when it was added, and a program is not."""
    rules = find_rules()
    rules.add(__name__.partition(".")[0])
    skips = [bool(rules.check_file(file).skipped) for file in (__file__, "/a/program.py")]
    return skips == [True, False]


def _replace_guard_setter(
    replacement: Callable[[Callable[[], object]], object], torch: Any
) -> None:
    """From now on torch calls `replacement` with its own setter, where it called that."""
    functions = torch._C
    setter = functions._ensureCUDADeviceGuardSet
    functions._ensureCUDADeviceGuardSet = lambda: replacement(setter)


def _hears_of_it(replace: Callable[..., object]) -> bool:
    """What torch does with it cannot be tried: where the guard belongs to a thread that ends, torch
    crashes. So this looks whether torch has it, and tries the rest with a twin."""
    twin = SimpleNamespace(_C=SimpleNamespace(_ensureCUDADeviceGuardSet=list))
    heard: list[object] = []
    replace(heard.append, twin)
    twin._C._ensureCUDADeviceGuardSet()
    return heard == [list] and callable(resolve("torch._C._ensureCUDADeviceGuardSet"))


def _leave_guard(replacement: object, torch: object) -> None:
    """Does nothing: a torch that has no such function needs none."""
    del replacement, torch


_names = Names("compiled modules in DataParallel", within=plain_modes)
is_compiled: Callable[[nn.Module], bool] = _names.take(
    "OptimizedModule._orig_mod",
    "be the module within a compiled one",
    _tells_compiled,
    reader=_is_compiled,
    cost=Cost.SLOW,
)
copy_compiled: Callable[[nn.Module], nn.Module] = _names.take(
    "Module._is_replica, and its _parameters",
    "make what torch takes for a replica of a copy of a compiled module",
    _is_apart,
    reader=_copy_compiled,
    cost=Cost.SLOW,
)
initialize: Callable[[nn.Module], None] = _names.take(
    "OptimizedModule._initialize",
    "have a compiled module call the one that it has within",
    _calls_its_own,
    reader=_initialize,
    cost=Cost.SLOW,
)
_rules = Names("leaving this package alone in functions that are compiled", within=plain_modes)
_rules.take(
    COMPILER_RULES,
    "know what a compiler passes over, and take more of it by `add`",
    _passes_over,
    reader=_find_rules,
    otherwise=_find_rules,
    cost=Cost.SLOW,
)


def _elsewhere(expression: str, **names: object) -> Any:
    """A function of a tensor `x` that lies in no file of ours, so that a compiler looks into it."""
    return eval(f"lambda x: {expression}", names)


def _tells_why(mark: Callable[[Any, str], object]) -> bool:
    marked = _elsewhere("x * 2")
    mark(marked, "this is why")
    caller = _elsewhere("marked(x) + 1", marked=marked)
    try:
        compiled: Any = torch.compile(caller, backend="eager", fullgraph=True)
        compiled(torch.ones(1))
    except RuntimeError as error:
        return "this is why" in str(error)
    return False


def _mark(function: Any, reason: str) -> None:
    setattr(function, OPAQUE, True)
    setattr(function, REASON_OF_OPAQUE, reason)


_rules.take(
    f"{OPAQUE}, and {REASON_OF_OPAQUE}",
    "be why a compiler, which must not cut a function, refuses one that calls what has them",
    _tells_why,
    reader=_mark,
    otherwise=_mark,
    cost=Cost.SLOW,
)


def _compiler_of(function: Any) -> object:
    """What has made a compiled function of another, and makes one like it again."""
    return function.__closure__[function.__code__.co_freevars.index("self")].cell_contents


def _compiles_again(compiler_of: Callable[[Any], Any]) -> bool:
    double = _elsewhere("x * 2")
    compiled: Any = torch.compile(double, backend="eager")
    again = pickle.loads(pickle.dumps(compiler_of(compiled)))(getattr(compiled, COMPILED_OF))
    return getattr(again, COMPILED_OF) is double and bool(again(torch.ones(1)) == 2)


_sent = Names("sending compiled functions", within=plain_modes)
compiler_of: Callable[[Any], Any] = _sent.take(
    f"{COMPILED_OF}, and the closure of a compiled function",
    "be what a function was compiled of, and hold what compiles another one in the same way",
    _compiles_again,
    reader=_compiler_of,
    cost=Cost.SLOW,
)
_guard = Names("compiling on several threads, with torch 2.10 and 2.11 for CUDA on a CPU")
replace_guard_setter: Callable[[Callable[[Callable[[], object]], object], Any], None] = _guard.take(
    "torch._C._ensureCUDADeviceGuardSet",
    "have this thread own what stands in for missing devices, when it is asked to",
    _hears_of_it,
    reader=_replace_guard_setter,
    otherwise=_leave_guard,
    cost=Cost.SLOW,
)
PRIVATES = (*_names.finish(), *_rules.finish(), *_sent.finish(), *_guard.finish())
