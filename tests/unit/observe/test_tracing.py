"""A trace is asked of the processes of a job, and written as a file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lockstitch import observe
from lockstitch.attach.asking import Silence
from lockstitch.attach.presence import Presence
from lockstitch.attach.sources import Sources
from lockstitch.observe.tracing import share_of, trace_of
from tests.chrome_format import read_trace
from tests.unit.attach.cards import card
from tests.unit.observe.jobs import job
from tests.unit.observe.traces import recorded, span

if TYPE_CHECKING:
    from pathlib import Path


def test_a_process_records_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(tmp_path / "run"))
    sources = Sources()
    sources.names.append(lambda: ["ps"])
    presence = Presence(sources)
    presence.show()
    try:
        found = observe.trace(seconds=0.01, path=tmp_path / "t.json")
    finally:
        presence.close()
    (track,) = found.tracks
    assert (track.name, track.dropped, found.silent) == ("ps", 0, ())
    assert track.began_at < track.ended_at
    assert read_trace(tmp_path / "t.json").about["seconds"] == 0.01


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"seconds": float("nan")}, {"most_spans": 0}])
def test_what_cannot_be_recorded_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="cannot be recorded"):
        observe.trace(**wrong)


@pytest.mark.parametrize(
    ("processes", "each"), [(0, 100_000), (5, 100_000), (50, 10_000), (10_000, 1000)]
)
def test_all_processes_together_keep_no_more_than_can_be_shown(processes: int, each: int) -> None:
    assert share_of(processes) == each


def test_a_folder_that_is_not_there_is_told_before_anything_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        observe.trace(seconds=3600, path=tmp_path / "none" / "t.json")


def test_workers_that_told_nothing_are_named() -> None:
    silence = Silence(card(12, names=("worker2",), rank="2"), "it is gone", None)
    whole = replace(job(recorded(0, span("call", 0, 1))), silent=(silence,))
    found = trace_of(whole, 1.0)
    assert found.silent == ("worker2 (pid 12): it is gone",)
    assert found.metadata()["silent_workers"] == list(found.silent)


def test_a_job_that_has_recorded_nothing_is_an_empty_trace(tmp_path: Path) -> None:
    trace_of(job(), 1.0).save(tmp_path / "t.json")
    assert read_trace(tmp_path / "t.json").slices == []


def test_what_was_served_before_it_was_called_is_of_an_earlier_connection() -> None:
    call = span("call", 200, 300, peer="worker1", number=7)
    serve = span("serve", 20, 60, worker="worker1", peer="worker0", number=7, at=50)
    found = trace_of(job(recorded(0, call), recorded(1, serve)), 1.0)
    assert [each.kind for each in found.flows] == ["reply"]
    assert found.cut == 2
