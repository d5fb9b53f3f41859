"""Records say who this process is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.attach.logs import ProcessLog
from lockstitch.attach.sources import SOURCES

if TYPE_CHECKING:
    import pytest


def test_each_record_has_worker_and_rank(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(SOURCES, "names", [lambda: ["ps"]])
    caplog.set_level("INFO", "lockstitch")
    log = ProcessLog("lockstitch.test")
    log.debug("unheard")
    log.info("begins %s", "now")
    monkeypatch.setattr(SOURCES, "names", [])
    log.info("again")
    first, second = caplog.records
    assert first.getMessage() == "begins now"
    assert (first.worker, first.rank) == ("ps", "3")  # type: ignore[attr-defined]
    assert second.worker == "rank 3"  # type: ignore[attr-defined]
