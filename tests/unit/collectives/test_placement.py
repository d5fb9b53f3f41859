"""Which way tensors of a device go: all ranks come to the same from what all have told."""

from __future__ import annotations

import pytest

from lockstitch.collectives.placement import Placement, is_for_nccl, placed
from lockstitch.errors import CollectiveError, ProtocolError

RANKS = (2, 5)


def pair(first: str, second: str, wish: str = "auto", has_nccl: bool = True) -> list[Placement]:
    return [Placement(first, True, wish), Placement(second, has_nccl, wish)]  # type: ignore[arg-type]


def test_ranks_with_gpus_of_their_own_use_nccl() -> None:
    assert is_for_nccl(pair("host 0:1:0", "host 0:2:0"), RANKS)
    assert is_for_nccl(pair("host 0:1:0", "other 0:1:0"), RANKS)
    assert is_for_nccl(pair("host 0:1:0", "host 0:2:0", "nccl"), RANKS)
    assert is_for_nccl(pair("a", "b", "nccl")[:1], RANKS[:1])


@pytest.mark.parametrize(
    ("placements", "why"),
    [
        (pair("gpu", "gpu"), r"ranks 2 and 5 use the same GPU \(gpu\)"),
        (pair("gpu", ""), "rank 5 uses no GPU"),
        (pair("gpu", "other", has_nccl=False), "the torch of rank 5 was built without it"),
    ],
)
def test_others_go_through_host_memory_unless_nccl_is_demanded(
    placements: list[Placement], why: str
) -> None:
    assert not is_for_nccl(placements, RANKS)
    demanded = [Placement(each.device, each.has_nccl, "nccl") for each in placements]
    with pytest.raises(CollectiveError, match=f"NCCL was demanded .*, but {why}: give each rank"):
        is_for_nccl(demanded, RANKS)


def test_host_memory_can_be_demanded() -> None:
    assert not is_for_nccl(pair("a", "b", "host"), RANKS)


def test_different_demands_are_an_error() -> None:
    told = [Placement("a", True, "nccl"), Placement("b", True, "host")]
    with pytest.raises(CollectiveError, match=r"rank 2: nccl, rank 5: host.*alike"):
        is_for_nccl(told, RANKS)


def test_placement_survives_the_crossing() -> None:
    told = Placement("host 0:1:0", True, "auto", "127.0.0.1:5", "word")
    assert Placement.decode(told.encode()) == told


@pytest.mark.parametrize("content", [b"", b"7", b"{}", b'{"device": 1, "has_nccl": true}'])
def test_what_is_no_placement_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError, match="no rank describes"):
        Placement.decode(content)


def test_rank_without_a_device_says_so() -> None:
    assert placed(None, "host", "auto").device == ""
