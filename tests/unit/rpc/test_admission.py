"""Whom a newcomer asks, and what it does with the answers."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import PeerDiedError, RpcTimeoutError
from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous import Member
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.member_records import MemberRecord
from lockstitch.rendezvous.membership_events import Admit, Redirect, Refuse
from lockstitch.rpc.admission import Admission, Invitation, JoinRequest, answer_of

WISH = JoinRequest("new", -1, ("unix:/new",), "host")


def record(name: str, rank: int) -> MemberRecord:
    return MemberRecord(
        Member(WorkerInfo(name, rank), (f"unix:/{name}",), "host"), rank, f"mark-{name}"
    )


class Members:
    """Answers by address; what is not there is dead. Asks `script` first, in its order."""

    def __init__(self, **answers) -> None:
        self.answers = answers
        self.asked = []
        self.marks = []

    def __call__(self, join_request, mark, where, timeout):
        (address,), _host = where
        name = address.removeprefix("unix:/")
        self.asked.append(name)
        self.marks.append(mark)
        answer = self.answers.get(name, PeerDiedError(name))
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def admitted(rank: int = 7):
    records = (record("a", 0), record("new", rank))
    return answer_of(Admit(1, records[1], records), is_over=False)


def elsewhere(name: str):
    return answer_of(Redirect(1, record(name, 0)), is_over=False)


def admission(ask, seconds: float = 60.0) -> Admission:
    return Admission(WISH, ask, SYSTEM_CLOCK, seconds)


@pytest.fixture
def contacts():
    contacts = Contacts(HashStore())
    contacts.found(contacts.read(), "world", "mark-a", record("a", 0).member)
    contacts.add("world", "mark-b", record("b", 1).member)
    return contacts


def test_an_empty_store_makes_a_founder():
    contacts = Contacts(HashStore())
    entry = admission(Members()).by_store(contacts)
    assert (entry.me.id, entry.me.age, entry.records) == ((0, 0), 0, ())
    assert contacts.read().group_id == entry.group_id
    assert list(contacts.read().members) == [entry.me.mark]


def test_a_member_lets_in_whom_the_eldest_has_admitted(contacts):
    ask = Members(a=elsewhere("b"), b=admitted())
    entry = admission(ask).by_store(contacts)
    assert ask.asked == ["a", "b"]
    assert entry.me == record("new", 7)
    assert [each.name for each in entry.records] == ["a", "new"]
    assert len(contacts.read().members) == 3


def test_the_dead_are_passed_over(contacts):
    entry = admission(Members(b=admitted())).by_store(contacts)
    assert entry.group_id == "world"


def test_where_all_are_dead_or_leaving_the_group_is_founded_anew(contacts):
    over = answer_of(Refuse(1, "it has left"), is_over=True)
    entry = admission(Members(b=over)).by_store(contacts)
    assert entry.records == ()
    assert contacts.read().group_id == entry.group_id != "world"
    assert len(contacts.read().members) == 1


def test_who_is_silent_is_not_dead(contacts):
    ask = Members(b=RpcTimeoutError("no answer"))
    with pytest.raises(RuntimeError, match=r"did not get into the group within 0.1 s: .*a, b"):
        admission(ask, 0.1).by_store(contacts)
    assert contacts.read().group_id == "world"


def test_who_is_let_into_a_group_that_is_over_begins_anew_under_another_mark(contacts):
    def founded_meanwhile():
        contacts.found(contacts.read(), "another", "mark-c", record("c", 0).member)
        return admitted()

    ask = Members(a=founded_meanwhile, c=admitted(3))
    entry = admission(ask).by_store(contacts)
    assert (entry.group_id, entry.me.id.rank) == ("another", 3)
    assert ask.marks[0] != ask.marks[-1]


def test_a_refusal_is_final(contacts):
    refused = answer_of(Refuse(1, "rank 1 is taken"), is_over=False)
    with pytest.raises(RuntimeError, match="rank 1 is taken"):
        admission(Members(a=refused)).by_store(contacts)


def test_by_address_it_waits_until_somebody_is_there():
    ask = Members(a=[PeerDiedError("a"), elsewhere("gone"), admitted()])
    assert admission(ask).by_address("unix:/a").me == record("new", 7)
    with pytest.raises(RuntimeError, match="no member of a group answers at unix:/x"):
        admission(Members(), 0.1).by_address("unix:/x")


@pytest.mark.parametrize(
    ("address", "text"),
    [("unix:/tmp/x/socket", "lockstitch:///tmp/x/socket"), ("tcp:h:29", "lockstitch://h:29")],
)
def test_an_invitation_is_an_init_method(address, text):
    assert str(Invitation(address)) == text
    assert Invitation.read(text) == Invitation(address)
    assert Invitation.read("env://") is None
    told = {"LOCKSTITCH_INVITATION": text}
    assert Invitation.read("env://", told) == Invitation(address)
    assert Invitation.read("file:///store", told) is None
    assert Invitation.read("env://", {"LOCKSTITCH_INVITATION": ""}) is None


@pytest.mark.parametrize("text", ["lockstitch://", "lockstitch://host"])
def test_an_invitation_names_a_place(text):
    with pytest.raises(ValueError, match="names no member of a group"):
        Invitation.read(text)
