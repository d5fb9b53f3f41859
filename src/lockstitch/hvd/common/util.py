"""`horovod.common.util`: the small questions that programs ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.devices.kinds import are_gpus_usable
from lockstitch.hvd import basics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

__all__ = [
    "ccl_built",
    "check_extension",
    "cuda_built",
    "ddl_built",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]


def _asked(question: Callable[[], T]) -> Callable[..., T]:
    """A question of `basics` as this module has it: with an argument that says nothing here."""

    def answer(verbose: bool = False) -> T:  # noqa: ARG001
        return question()

    answer.__doc__ = question.__doc__
    answer.__name__ = question.__name__
    return answer


ccl_built = _asked(basics.ccl_built)
cuda_built = _asked(basics.cuda_built)
ddl_built = _asked(basics.ddl_built)
gloo_built = _asked(basics.gloo_built)
mpi_built = _asked(basics.mpi_built)
nccl_built = _asked(basics.nccl_built)
rocm_built = _asked(basics.rocm_built)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: ARG001
    """Returns whether there is an interface for a framework: for `"torch"`."""
    return ext_base_name == "torch"


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:  # noqa: ARG001
    """Raises `ImportError` for the interface of another framework (`"horovod.tensorflow"`)."""
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name} is not here: there is an interface for PyTorch only")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether a framework sees a GPU of CUDA."""
    return extension_available(ext_base_name, verbose) and are_gpus_usable()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether a number of ranks is 1, 2, 4, 8, …"""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[T], num_parts: int) -> list[list[T]]:
    """Consecutive parts of nearly the same length, the longer ones first; empty ones left out."""
    share, rest = divmod(len(values), num_parts)
    begins = [share * part + min(part, rest) for part in range(num_parts + 1)]
    parts = [list(values[begins[part] : begins[part + 1]]) for part in range(num_parts)]
    return [part for part in parts if part]


def is_iterable(value: Any) -> bool:
    """Returns whether one can go through it."""
    return isinstance(value, Iterable)
