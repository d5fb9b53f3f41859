"""What is answered at which path."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette")

from lockstitch.attach.spans import MOST_SPANS
from lockstitch.attach.values import ContextReport, SentTensors, WorkerReport
from lockstitch.dashboard.application import STATIC, make_application
from lockstitch.dashboard.watching import Watcher
from lockstitch.observe.tracing import share_of
from tests.unit.dashboard.client import get
from tests.unit.dashboard.looks import Looks
from tests.unit.observe.jobs import idle, job

if TYPE_CHECKING:
    from lockstitch.dashboard.access import Access

BEARER = {"Authorization": "Bearer right"}
CONTEXT = ContextReport(7, (SentTensors("0.0", 0, ("float32 3",)),))
WITH_CONTEXT = replace(idle(0), workers=(WorkerReport("worker0", 0, contexts=(CONTEXT,)),))


@pytest.fixture
def application() -> Access:
    """Of a job that has been looked at once, and has ended."""
    watcher = Watcher(Looks(job(WITH_CONTEXT)), every_seconds=0.0)
    asyncio.run(watcher.run())
    return make_application(watcher, Looks(job(WITH_CONTEXT), job(idle(0))), "right")


@pytest.mark.parametrize("path", STATIC)
def test_the_files_of_the_page(application: Access, path: str) -> None:
    answer = get(application, path)
    assert answer.status == 200
    assert answer.headers["content-type"] == STATIC[path][1]
    assert answer.content
    assert get(application, path, method="POST").status == 405


def test_events_tell_of_the_looks_and_end_with_the_job(application: Access) -> None:
    answer = get(application, "/api/events", BEARER)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    (event,) = answer.text.removesuffix("\n\n").split("\n\n")
    told = json.loads(event.removeprefix("data: "))
    assert told["state"]["rows"][0]["name"] == "worker0"
    assert told["state"]["ended_at"] is not None
    assert len(told["points"]) == 1


def test_the_picture_of_a_context(application: Access) -> None:
    answer = get(application, "/api/graph?context=7", BEARER)
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "float32 3" in answer.text
    answer = get(application, "/api/graph", BEARER)
    assert (answer.status, answer.json()["error"]) == (
        404, "say which autograd context: in job train none is open",
    )  # fmt: skip
    answer = get(application, "/api/graph?context=x", BEARER)
    assert (answer.status, answer.json()["error"]) == (404, "it has ended")


def test_a_trace_is_a_file_for_perfetto() -> None:
    looks = Looks(*[job(*[WITH_CONTEXT] * 50)] * 2)
    application = make_application(Watcher(Looks()), looks, "right")
    told = get(application, "/api/trace?seconds=2.5", BEARER).json()
    assert told["otherData"]["seconds"] == 2.5
    assert [each.record_seconds for each in looks.questions] == [0, 2.5]
    assert looks.questions[1].most_spans == share_of(50) < MOST_SPANS
    for seconds in ("", "0", "-1", "61", "nan", "inf", "x"):
        answer = get(application, f"/api/trace?seconds={seconds}", BEARER)
        assert (answer.status, list(answer.json())) == (404, ["error"])
    assert get(application, "/api/trace?seconds=1").status == 403
