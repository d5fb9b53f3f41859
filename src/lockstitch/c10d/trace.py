"""The flight recorder's operations as torch's tools read them.

`TORCH_FR_DUMP_TEMP_FILE`, or `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`, names the beginning of a file, to
which the rank is added: each rank writes its own there when a group ends with an error.
`torchfrtrace` (`python -m torch.distributed.flight_recorder.fr_trace`) compares those of all ranks.
It knows the names of torch's own libraries only, so ours go by that of Gloo.
"""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lockstitch.c10d.flight_recorder import RECORDER, Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from lockstitch.c10d.flight_recorder import FlightRecorder, GroupLabel

_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_VERSION: Final = "2.10"
"""Of the format."""
_NAMES: Final = {
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_gather_coalesced": "ALLGATHER_coalesced",
}


def dump_trace() -> bytes:
    """Returns the last operations of this process, pickled as torch's flight recorder has them."""
    return pickle.dumps(trace_of(RECORDER))


def trace_of(recorder: FlightRecorder) -> dict[str, Any]:
    """Returns what a recorder has kept."""
    entries = recorder.entries()
    groups: dict[GroupLabel, int] = {}
    for entry in entries:
        groups.setdefault(entry.group, len(groups))
    since_epoch = time.time() - time.monotonic()
    return {
        "version": _VERSION,
        "pg_config": {
            group.name: {
                "name": group.name,
                "desc": group.description,
                "ranks": str(list(group.ranks)),
            }
            for group in groups
        },
        "pg_status": {},
        "entries": [
            _traced(entry, record, groups[entry.group], since_epoch)
            for record, entry in enumerate(entries)
        ],
    }


def _traced(entry: Entry, record: int, group: int, since_epoch: float) -> dict[str, Any]:
    name, _, between = entry.name.partition(" ")
    between = between.replace("any", "-1")  # torch's tools read numbers only
    state = entry.state
    results = entry.results or entry.shapes
    return {
        "record_id": record,
        "pg_id": group,
        "process_group": (entry.group.name, entry.group.description),
        "collective_seq_id": 0 if entry.is_message or entry.callback else entry.number,
        "p2p_seq_id": entry.number if entry.is_message else 0,
        "op_id": entry.number,
        "profiling_name": f"gloo:{_NAMES.get(name, name)}{between and ' '}{between}",
        "time_created_ns": int((entry.submitted_at + since_epoch) * 1e9),
        "input_sizes": [list(shape) for shape in entry.shapes],
        "input_dtypes": _types(entry.dtypes),
        "output_sizes": [list(shape) for shape in results],
        "output_dtypes": _types(list(entry.dtypes[:1]) * len(results)),
        "state": "completed" if state == "done" else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state != "under way",
        "timeout_ms": int(1000 * entry.limit_seconds),
        "is_p2p": entry.is_message,
        "frames": [],
    }


def _types(dtypes: Iterable[torch.dtype]) -> list[str]:
    return [str(dtype).removeprefix("torch.") for dtype in dtypes]


def trace_file(environment: Mapping[str, str], rank: int) -> Path | None:
    """Returns where a rank writes its operations; None where it does not."""
    for variable in _FILES:
        if prefix := environment.get(variable):
            return Path(f"{prefix}{rank}")
    return None


def tell_failure(group: GroupLabel, error: BaseException) -> str:
    """A group has ended with an error: its last operations are logged, and written where the
    environment says so; once for each group. Returns what is to be added to the error where they
    cannot be written."""
    if not RECORDER.is_first_failure(group):
        return ""
    RECORDER.log(group, error)
    path = trace_file(os.environ, group.global_rank)
    try:
        if path is not None:
            path.write_bytes(dump_trace())
    except OSError as reason:
        return f"\n  the last operations could not be written to {path}: {reason}"
    return ""
