"""Who is found in a group that workers join and leave, and what is said of those who are gone."""

from __future__ import annotations

import pytest

from lockstitch.errors import PeerDiedError, PeerLeftError
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rendezvous import host_identity
from lockstitch.rendezvous.member_records import MemberRecord, MemberState
from lockstitch.rendezvous.membership_protocol import MembershipProtocol
from lockstitch.rendezvous.roster import Member
from lockstitch.rpc.dynamic_directory import DynamicDirectory, gone
from lockstitch.transport.memory import MemoryNetwork

TRANSPORT = MemoryNetwork().transport("a")


def record(name: str, rank: int, generation: int = 0, host: str = "elsewhere") -> MemberRecord:
    member = Member(WorkerInfo(name, rank, generation), (f"memory:{name}/0",), host)
    return MemberRecord(member, age=rank, mark=f"{name}{generation}")


A, B = record("a", 0), record("b", 1)


@pytest.fixture
def directory() -> DynamicDirectory:
    return DynamicDirectory(MembershipProtocol(A, [B]), TRANSPORT)


def test_who_is_in_is_found_by_name_rank_and_identity(directory: DynamicDirectory) -> None:
    assert [directory.find(key) for key in ("b", 1, B.id)] == [B.member.info] * 3
    assert directory.members() == [A.member.info, B.member.info]
    assert directory.find("c") is None


@pytest.mark.parametrize(
    ("state", "error"), [(MemberState.LEFT, PeerLeftError), (MemberState.DIED, PeerDiedError)]
)
def test_a_name_or_rank_whose_worker_is_gone_says_why(
    directory: DynamicDirectory, state: MemberState, error: type[PeerDiedError]
) -> None:
    ended = B.ended(state, "it was time")
    directory.update([A], ended)
    for key in ("b", 1):
        with pytest.raises(error, match="'b'.*it was time"):
            directory.find(key)
    assert type(gone(ended)) is error
    assert directory.find(B.id) == B.member.info, "it still has a name"
    assert directory.members() == [A.member.info]


def test_a_replacement_is_found_in_the_place_of_who_is_gone(directory: DynamicDirectory) -> None:
    directory.update([A], B.ended(MemberState.DIED, "killed"))
    again = record("b", 1, generation=1)
    directory.update([A, again])
    found = directory.find("b")
    assert found is not None
    assert found.worker == WorkerId(1, 1)


def test_only_who_left_is_still_reached(directory: DynamicDirectory) -> None:
    local = record("b", 1, host=host_identity())
    listener = TRANSPORT.listen()
    member = Member(local.member.info, (listener.address,), host_identity())
    left = MemberRecord(member, 1, "b0").ended(MemberState.LEFT, "it has left")
    directory.update([A], left)
    directory.connect(member.info, 1).close()
    places = [directory.elsewhere(each.id) for each in (A, local, record("c", 7))]
    assert places == [", on another host", "", ""]
    directory.update([A], left.ended(MemberState.DIED, "it was silent"))
    with pytest.raises(ConnectionError, match="not in the group any more: it was silent"):
        directory.connect(member.info, 1)
    listener.close()
