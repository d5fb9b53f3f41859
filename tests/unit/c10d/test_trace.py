"""The flight recorder's operations as torch's tools read them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.c10d.flight_recorder import Entry, FlightRecorder, GroupLabel
from lockstitch.c10d.trace import dump_trace, tell_failure, trace_file, trace_of

if TYPE_CHECKING:
    import pytest


class Session:
    rank = 1

    def in_flight(self, _key: tuple[int, str]) -> Any:
        return None


def test_operations_and_messages_have_the_fields_of_torch() -> None:
    session: Any = Session()
    group = GroupLabel(session, "3", (4, 7))
    recorder = FlightRecorder(9)
    whole, part = [torch.Size([4])], [torch.Size([2])]
    dtypes = [torch.bfloat16]
    gathered = Entry(
        group, 5, "all_gather_into_tensor", False, part, dtypes, whole, (0, "a"), 1.0, 2.5
    )
    failed = Entry(group, 1, "recv 1<-0", True, part, dtypes, (), (0, "b"), 1.0, 0.0, True)
    for each in (gathered, failed):
        recorder.record(each)
    trace = trace_of(recorder)
    assert trace["pg_config"] == {"3": {"name": "3", "desc": "", "ranks": "[4, 7]"}}
    first, second = trace["entries"]
    assert first["profiling_name"] == "gloo:_all_gather_base"
    assert (first["collective_seq_id"], first["p2p_seq_id"], first["timeout_ms"]) == (5, 0, 2500)
    assert (first["input_sizes"], first["output_sizes"]) == ([[2]], [[4]])
    assert first["input_dtypes"] == first["output_dtypes"] == ["bfloat16"]
    assert (first["state"], second["state"]) == ("completed", "scheduled")
    assert second["profiling_name"] == "gloo:recv 1<-0"
    assert (second["collective_seq_id"], second["p2p_seq_id"]) == (0, 1)
    assert second["is_p2p"]


def test_dump_is_a_pickle_of_a_trace() -> None:
    assert pickle.loads(dump_trace()).keys() >= {"version", "pg_config", "entries"}


def test_failure_is_written_once_and_tells_where_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session: Any = Session()
    error = RuntimeError("rank 4 died")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/missing/trace_")
    told = tell_failure(GroupLabel(session, "3", (4, 7)), error)
    assert f"could not be written to {tmp_path}/missing/trace_7" in told
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/trace_")
    group = GroupLabel(session, "3", (4, 7))
    assert [tell_failure(group, error) for _ in range(2)] == ["", ""]
    assert "entries" in pickle.loads((tmp_path / "trace_7").read_bytes())


def test_file_is_named_by_the_variables_of_torch() -> None:
    assert trace_file({}, 3) is None
    assert trace_file({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/a/trace_"}, 3) == Path("/a/trace_3")
    both = {"TORCH_FR_DUMP_TEMP_FILE": "/b_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/a_"}
    assert trace_file(both, 0) == Path("/b_0")
