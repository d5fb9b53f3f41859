"""Whatever was recorded becomes a file that a strict reader of the format takes."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstitch.attach.spans import KINDS
from lockstitch.observe.tracing import trace_of
from tests.chrome_format import ReadTrace, read_trace
from tests.unit.observe.jobs import job
from tests.unit.observe.traces import recorded, span

if TYPE_CHECKING:
    from pathlib import Path

    from lockstitch.attach.values import ProcessReport


def read(folder: Path, *processes: ProcessReport) -> ReadTrace:
    path = folder / "trace.json"
    trace_of(job(*processes), 1.0).save(path)
    return read_trace(path)


spans = st.builds(
    span,
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 50),
    st.integers(50, 100),
    name=st.sampled_from(["m:f", "m:g"]),
    worker=st.sampled_from(["worker0", "worker1"]),
    peer=st.sampled_from(["worker0", "worker1", ""]),
    number=st.integers(0, 3),
    at=st.integers(40, 60),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(spans, max_size=12), st.lists(spans, max_size=12), st.sampled_from(["host", "far"]))
def test_any_spans_make_a_file_that_the_format_allows(tmp_path, first, second, host) -> None:
    processes = recorded(0, *first), recorded(1, *second, host=host)
    found = read(tmp_path, *processes)
    on_threads = [each for each in (*first, *second) if each.kind != "collective"]
    assert len(found.slices) == len(on_threads)
    assert len(found.arrows) == found.about["flows"]


def test_a_call_is_a_slice_on_each_side_with_arrows_there_and_back(tmp_path: Path) -> None:
    call = span("call", 0, 100, peer="worker1", number=7, sent=10, received=20)
    serve = span("serve", 20, 60, worker="worker1", peer="worker0", number=7, at=50)
    found = read(tmp_path, recorded(0, call), recorded(1, serve))
    assert found.names == {10: "worker0 (rank 0, pid 10)", 11: "worker1 (rank 1, pid 11)"}
    assert [(a.name, a.begin["name"], a.end["name"]) for a in found.arrows] == [
        ("call", "call m:f", "serve m:f"),
        ("reply", "serve m:f", "call m:f"),
    ]
    (slice_,) = [each for each in found.slices if each["name"] == "call m:f"]
    assert (slice_["ts"], slice_["dur"], slice_["pid"]) == (0.0, 100.0, 10)
    assert slice_["args"]["sent_bytes"] == 10


def test_a_collective_has_its_negotiation_and_its_work_apart(tmp_path: Path) -> None:
    collective = span("collective", 10, 50, name="allreduce g", at=30)
    found = read(tmp_path, recorded(0, collective))
    times = {begin["name"]: (begin["ts"], end["ts"]) for begin, end in found.asynchronous}
    assert times == {
        "allreduce g": (10.0, 50.0),
        "negotiate allreduce g": (10.0, 30.0),
        "work on allreduce g": (30.0, 50.0),
    }


def test_ranges_that_overlap_are_put_on_rows_of_their_own(tmp_path: Path) -> None:
    found = read(tmp_path, recorded(0, span("range", 0, 60), span("range", 30, 90)))
    assert len({each["tid"] for each in found.slices}) == 2


def test_dropped_spans_are_told_in_the_file_and_on_its_axis(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace_of(job(recorded(0, span("call", 5, 6), dropped=3)), 1.0).save(path)
    assert "3 earlier spans dropped" in path.read_text()
    assert read_trace(path).about["workers"][0]["dropped_spans"] == 3


def test_clocks_of_two_hosts_are_aligned_and_the_error_is_told(tmp_path: Path) -> None:
    call = span("call", 1_000, 1_100, peer="worker1", number=7)
    serve = span("serve", 5_020, 5_090, worker="worker1", peer="worker0", number=7, at=5_080)
    found = read(tmp_path, recorded(0, call), recorded(1, serve, host="far"))
    here, far = found.about["clocks"]
    assert (here["offset_us"], here["error_us"]) == (0.0, 0.0)
    assert abs(far["offset_us"] + 4_000) <= far["error_us"] <= 20.1
    assert len(found.arrows) == 2


def test_two_hosts_may_have_given_the_same_number(tmp_path: Path) -> None:
    found = read(
        tmp_path, recorded(0, span("call", 0, 1)), recorded(0, span("call", 0, 1), host="far")
    )
    assert len(found.names) == 2


def test_threads_have_their_names(tmp_path: Path) -> None:
    report = recorded(0, span("call", 0, 1))
    (main,) = report.threads
    path = tmp_path / "trace.json"
    ident = threading.get_ident()
    known = replace(main, ident=ident, native_id=77, name="MainThread")
    trace_of(job(replace(report, threads=(known,))), 1.0).save(path)
    assert {each["tid"] for each in read_trace(path).slices} == {77}
