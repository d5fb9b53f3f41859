from __future__ import annotations

import io

from rich.console import Console

from lockstitch.doctor.findings import good, note, wrong
from lockstitch.doctor.report import show


def report(*findings: object) -> tuple[int, str]:
    text = io.StringIO()
    count = show(findings, Console(file=text, width=80))  # type: ignore[arg-type]
    return count, text.getvalue()


def test_what_is_wrong_is_counted_and_comes_with_its_remedy() -> None:
    count, text = report(
        good("torch", "2.13"), note("gpu", "none"), wrong("secret", "it is open", "close it")
    )
    assert count == 1
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "torch ok 2.13",
        "gpu note none",
        "secret WRONG it is open",
        "→ close it",
        "",
        "1 of these will make something fail.",
    ]


def test_topic_is_named_once() -> None:
    count, text = report(good("cores", "2"), note("cores", "few"))
    assert count == 0
    assert text.count("cores") == 1
