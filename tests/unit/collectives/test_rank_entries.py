"""What ranks have published, and what is wrong with it."""

from __future__ import annotations

import pytest

from lockstitch.collectives.rank_entries import (
    COORDINATOR,
    DOOR,
    Kind,
    check_reach,
    check_versions,
    place,
    published,
)
from lockstitch.errors import CollectiveError
from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous import Member, StaticRoster
from lockstitch.rendezvous.roster import Table


def roster(address: str, hosts: tuple[str, ...]) -> StaticRoster:
    addresses = ((f"{DOOR}x", f"{COORDINATOR}{address}"), *[(f"{DOOR}x",)] * len(hosts))
    members = [
        Member(WorkerInfo(f"rank{rank}", rank), addresses[rank], host, host_name=host)
        for rank, host in enumerate(hosts)
    ]
    return StaticRoster(members[0].info, Table(members), lambda: None)


@pytest.mark.parametrize(
    "kind", [Kind("1.2", "2.10", ""), Kind("1.2+local", "2.10+cpu", "host a"), Kind("", "", "")]
)
def test_kind_survives_the_crossing(kind: Kind) -> None:
    assert Kind.decode(kind.encode()) == kind


def test_what_a_rank_has_published_is_found_by_its_prefix() -> None:
    found = roster("tcp:h:1", ("a", "b"))
    assert published(found, 0, COORDINATOR) == "tcp:h:1"
    assert published(found, 1, DOOR) == "x"
    with pytest.raises(CollectiveError, match="rank 1 has published no coordinator"):
        published(found, 1, COORDINATOR)


def test_place_is_empty_where_nobody_knows_it() -> None:
    found = roster("tcp:h:1", ("a", "b"))
    assert (place(found, 1), place(found, 2)) == ("host b", "")


def test_loopback_is_refused_where_ranks_are_on_other_hosts() -> None:
    check_reach(roster("tcp:127.0.0.1:1", ("a", "a")))
    check_reach(roster("tcp:10.0.0.1:1", ("a", "b")))
    with pytest.raises(CollectiveError, match=r"rank 0, on host a, .* where ranks 1, 2, on anoth"):
        check_reach(roster("tcp:127.0.0.1:1", ("a", "b", "b")))


def test_first_rank_with_another_version_is_named() -> None:
    def kinds(*versions: str, torch: str = "2.15.0") -> list[Kind]:
        return [Kind(version, torch, "") for version in versions]

    check_versions(kinds("1.0.0", "1.0.0"))
    with pytest.raises(CollectiveError, match=r"rank 0 runs lockstitch 1\.0\.0, rank 2 2\.0\.0"):
        check_versions(kinds("1.0.0", "1.0.0", "2.0.0"))
    with pytest.raises(CollectiveError, match=r"rank 0, on host 0, runs .*, rank 1, on host 1, 2"):
        check_versions(kinds("1.0.0", "2.0.0"), lambda rank: f"host {rank}")
    check_versions(kinds("1.0.0") + kinds("1.0.0", torch="2.15.1+cpu"))
    with pytest.raises(CollectiveError, match=r"rank 0 runs torch 2\.15\.0, rank 1 2\.10\.1, and"):
        check_versions(kinds("1.0.0") + kinds("1.0.0", torch="2.10.1"))
