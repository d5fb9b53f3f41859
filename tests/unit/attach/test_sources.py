"""Who has something to tell."""

from __future__ import annotations

from lockstitch.attach.sources import Sources


def test_names_of_all_sources_each_once() -> None:
    sources = Sources()
    assert sources.all_names() == ()
    sources.names += [lambda: ["a", "b"], lambda: ["b", "c"]]
    assert sources.all_names() == ("a", "b", "c")
