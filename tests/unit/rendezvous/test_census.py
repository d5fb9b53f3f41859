"""What all know of all: hosts and kinds, put together from parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous.census import Census
from lockstitch.rendezvous.roster import Member

_PLACES = st.tuples(st.sampled_from(["alpha", "beta", "gamma"]), st.sampled_from(["", "x", "ü"]))


def census_of(places: list[tuple[str, str]]) -> Census:
    return Census.of(
        Member(WorkerInfo(f"w{rank}", rank), (), host, kind=kind)
        for rank, (host, kind) in enumerate(places)
    )


@given(st.lists(st.lists(_PLACES)))
def test_parts_together_say_what_the_whole_says(parts: list[list[tuple[str, str]]]) -> None:
    whole = [place for part in parts for place in part]
    read = [Census.decode(census_of(part).encode().encode()) for part in parts]
    census = Census.joined(read).numbered()
    assert census == census_of(whole).numbered()
    assert census.kinds == tuple(kind for _, kind in whole)
    for (one, _), one_number in zip(whole, census.hosts, strict=True):
        for (other, _), other_number in zip(whole, census.hosts, strict=True):
            assert (one == other) == (one_number == other_number)


def test_census_of_many_ranks_takes_few_bytes() -> None:
    block_by_block = [(f"host {rank // 8}", "1.0") for rank in range(4096)]
    in_turns = [(f"host {rank % 512}", "1.0") for rank in range(4096)]
    assert len(census_of(block_by_block).numbered().encode()) < 6_000
    assert len(census_of(in_turns).numbered().encode()) < 20_000


@pytest.mark.parametrize("text", [b"", b"xyz", b"\xff", b"c$@(M0000100", b"{}"])
def test_what_is_no_census_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Census.decode(text)
