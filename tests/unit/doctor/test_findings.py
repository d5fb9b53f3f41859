from __future__ import annotations

from lockstitch.doctor.findings import Finding, good, note, wrong


def test_each_kind_says_of_itself_what_it_is() -> None:
    assert good("a", "b") == Finding("a", "good", "b", "")
    assert note("a", "b", "c") == Finding("a", "note", "b", "c")
    assert wrong("a", "b", "c") == Finding("a", "wrong", "b", "c")
