"""A file of options for `horovodrun --config-file`: YAML, in sections.

params:
  fusion_threshold_mb: 32
timeline:
  filename: timeline.json
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARAMETERS: Final = {
    "params.fusion_threshold_mb": "fusion_megabytes",
    "timeline.filename": "timeline",
    "timeline.mark_cycles": "mark_cycles",
    "stall_check.enabled": "stall_check",
    "stall_check.warning_time_seconds": "stall_warning",
    "stall_check.shutdown_time_seconds": "stall_shutdown",
    "library_options.gloo_timeout_seconds": "meeting_seconds",
    "logging.level": "log_level",
    "logging.with_timestamp": "log_timestamp",
}
"""The entries of the file, each with the parameter of `run` that it stands for."""

_WITHOUT_EFFECT: Final = frozenset(
    """
    controller params.cycle_time_ms params.cache_capacity params.hierarchical_allreduce
    params.hierarchical_allgather params.torus_allreduce autotune.enabled autotune.log_file
    autotune.warmup_samples autotune.steps_per_sample autotune.bayes_opt_max_samples
    autotune.gaussian_process_noise library_options.mpi_threads_disable
    library_options.num_nccl_streams library_options.thread_affinity
    """.split()
)


def read_config(text: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the parameters of `run` that the file gives, and the names of entries without effect
    here. Raises `ValueError` for anything else."""
    yaml = import_module("yaml")  # a fifth of the time that the command takes to start
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("it has no sections")
    given = dict(_entries(content))
    unknown = sorted(given.keys() - _PARAMETERS.keys() - _WITHOUT_EFFECT)
    if unknown:
        raise ValueError(f"it has entries that mean nothing: {', '.join(unknown)}")
    chosen = {_PARAMETERS[name]: value for name, value in given.items() if name in _PARAMETERS}
    return chosen, sorted(given.keys() & _WITHOUT_EFFECT)


def _entries(content: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the entries, with the sections' names before theirs; empty ones are left out."""
    for section, entries in content.items():
        if not isinstance(entries, dict):
            entries = {"": entries}
        for name, value in entries.items():
            if value is not None:
                yield f"{section}.{name}".rstrip("."), value
