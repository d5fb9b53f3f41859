"""Members agree on who is in, whatever happens meanwhile: any schedule, and the cases it is about.

The model is in `membership_model`; hypothesis chooses the schedule.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous.member_records import MemberRecord
from lockstitch.rendezvous.membership_events import (
    Acknowledgement,
    Applied,
    Confirmed,
    DeclaredDead,
    Departed,
    Excluded,
    Leaving,
    Lost,
    Notice,
    Query,
    Refuse,
    Ticked,
)
from lockstitch.rendezvous.membership_protocol import MembershipProtocol
from lockstitch.rendezvous.roster import Member
from tests.unit.rendezvous.membership_model import Groups, Parcel

NAMES = ("a", "b", "c")
WHICH = st.integers(0, 30)


class AnySchedule(RuleBasedStateMachine):
    """Workers come, go, die and are cut off at any moment; messages are late, twice, out of order,
    or lost."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = Groups()

    def _member(self, which: int):
        members = self.groups.members()
        return members[which % len(members)]

    def _parcel(self, which: int):
        return self.groups.parcels[which % len(self.groups.parcels)]

    @precondition(lambda self: self.groups.members())
    @rule(
        name=st.sampled_from(NAMES),
        rank=st.sampled_from((-1, -1, 0, 1, 2)),
        which=WHICH,
        by_store=st.booleans(),
    )
    def join(self, name: str, rank: int, which: int, by_store: bool) -> None:
        self.groups.join(name, rank, self._member(which), by_store=by_store)

    @precondition(lambda self: self.groups.members() and self.groups.applicants())
    @rule(which=WHICH, contact=WHICH)
    def apply_again(self, which: int, contact: int) -> None:
        applicants = self.groups.applicants()
        self.groups.apply(applicants[which % len(applicants)], self._member(contact))

    @precondition(lambda self: len(self.groups.members()) > 1)
    @rule(which=WHICH)
    def die(self, which: int) -> None:
        self.groups.die(self._member(which))

    @precondition(lambda self: len(self.groups.members()) > 1)
    @rule(which=WHICH, others=st.lists(WHICH, max_size=3))
    def cut_off(self, which: int, others: list[int]) -> None:
        """It notices so of one after the other, before it ends."""
        process = self._member(which)
        self.groups.cut_off(process)
        for other in others:
            self.groups.lose(process, self._member(other))

    @precondition(lambda self: len(self.groups.members()) > 1)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        self.groups.leave(self._member(which))

    @precondition(lambda self: self.groups.applicants())
    @rule(which=WHICH)
    def give_up(self, which: int) -> None:
        applicants = self.groups.applicants()
        self.groups.die(applicants[which % len(applicants)])

    @precondition(lambda self: self.groups.members())
    @rule(which=WHICH)
    def tick(self, which: int) -> None:
        self.groups.tick(self._member(which))

    @precondition(lambda self: self.groups.members())
    @rule(which=WHICH, other=WHICH)
    def notice(self, which: int, other: int) -> None:
        processes = self.groups.processes
        self.groups.notice(self._member(which), processes[other % len(processes)])

    @precondition(lambda self: self.groups.parcels)
    @rule(which=WHICH, times=st.integers(1, 6))
    def deliver(self, which: int, times: int) -> None:
        for _ in range(min(times, len(self.groups.parcels))):
            if self.groups.parcels:
                self.groups.deliver(self._parcel(which))

    @precondition(lambda self: self.groups.parcels)
    @rule(which=WHICH)
    def repeat(self, which: int) -> None:
        self.groups.deliver(self._parcel(which), again=True)

    @precondition(lambda self: self.groups.parcels)
    @rule(which=WHICH)
    def lose(self, which: int) -> None:
        parcel = self._parcel(which)
        if isinstance(parcel.event, (Notice, Acknowledgement, Query)):
            self.groups.parcels.remove(parcel)

    @invariant()
    def nobody_shares_a_place(self) -> None:
        self.groups.check_that_nobody_shares_a_place()

    @invariant()
    def newcomers_find_the_group(self) -> None:
        self.groups.check_that_the_store_names_one_that_lives()

    def teardown(self) -> None:
        if self.groups.members():
            self.groups.heal()
            self.groups.check_that_nobody_shares_a_place()
            self.groups.check_agreement()
            self.groups.check_that_the_store_names_one_that_lives()


TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = settings(settings.default, stateful_step_count=60)


# ---------------------------------------------------------------- what it is about


def group_of(size: int) -> Groups:
    groups = Groups()
    for number in range(1, size):
        groups.join(f"w{number}", -1, groups.members()[0])
        deliver_all(groups)
    assert len(groups.members()) == size
    return groups


def deliver_all(groups: Groups) -> None:
    for _ in range(30):
        for parcel in list(groups.parcels):
            if parcel in groups.parcels:
                groups.deliver(parcel)


def announcements(groups: Groups, name: str) -> list[Parcel]:
    """Goes on until the eldest has sent word of the newcomer; that word, which is on its way."""
    while True:
        found = [
            parcel
            for parcel in groups.parcels
            if isinstance(parcel.event, Notice)
            and any(x.name == name for x in parcel.event.records)
        ]
        if found:
            return found
        groups.deliver(groups.parcels[0])


def names(process) -> list[str]:
    return sorted(name for name, _ in process.roster())


def test_a_newcomer_is_known_to_all_when_it_comes_in():
    groups = group_of(3)
    for process in groups.members():
        assert names(process) == ["founder", "w1", "w2"]
        assert process.protocol.is_settled


def test_two_that_die_while_a_newcomer_is_announced_leave_no_two_rosters():
    groups = group_of(4)
    founder, w1, w2, w3 = groups.members()
    groups.join("late", -1, w3)
    told = announcements(groups, "late")
    groups.deliver(next(parcel for parcel in told if parcel.to is w1))  # the others hear nothing
    groups.die(founder)
    groups.die(w1)
    groups.heal()
    groups.check_agreement()
    assert names(w2) == names(w3) == ["late", "w2", "w3"]


def test_two_that_leave_at_the_same_time_are_both_gone_for_all():
    groups = group_of(4)
    founder, w1, w2, w3 = groups.members()
    groups.leave(founder)
    groups.leave(w1)
    groups.heal()
    groups.check_agreement()
    assert names(w2) == names(w3) == ["w2", "w3"]
    assert not founder.is_alive
    assert not w1.is_alive


def test_a_replacement_takes_rank_and_name_in_the_next_generation():
    groups = group_of(3)
    _founder, w1, w2 = groups.members()
    groups.die(w1)
    groups.join("w1", -1, w2)  # nobody has noticed the death
    deliver_all(groups)
    groups.heal()
    (replacement,) = [each for each in groups.members() if each.name == "w1"]
    assert replacement.id == (w1.id.rank, w1.id.generation + 1)
    assert replacement.roster() == w2.roster()


def test_a_name_or_rank_in_use_is_refused_once_its_holder_has_given_a_sign_of_life():
    groups = group_of(2)
    for name, rank, words in [
        ("w1", -1, "RPC worker name w1 is not unique"),
        ("other", 1, "rank 1 is taken by worker w1"),
        ("founder", -1, "RPC worker name founder is not unique"),
    ]:
        applicant = groups.join(name, rank, groups.members()[0])
        deliver_all(groups)
        assert words in applicant.refused


def test_a_late_word_of_a_dead_eldest_brings_nobody_in():
    groups = group_of(3)
    founder, w1, w2 = groups.members()
    groups.join("x", -1, founder)
    late = announcements(groups, "x")
    for parcel in late:
        groups.parcels.remove(parcel)
    groups.die(founder)
    groups.notice(w1, founder)
    groups.notice(w2, founder)
    groups.join("x", -1, w1)  # another one of that name
    deliver_all(groups)
    groups.parcels += late
    groups.heal()
    groups.check_that_nobody_shares_a_place()
    groups.check_agreement()


def test_the_eldest_knows_whom_to_ask_whether_it_is_cut_off_and_one_alone_what_that_means() -> None:
    records = [
        MemberRecord(Member(WorkerInfo(name, rank, 0), (f"memory:{name}",), "here"), rank, name)
        for rank, name in enumerate("abc")
    ]
    protocol = MembershipProtocol(records[0], records[1:])
    protocol.begin()
    protocol.handle(Lost(records[1].id, "it was silent", False))
    assert [record.name for record in protocol.cut_off_from()] == ["b"]
    younger = MembershipProtocol(records[2], records[:2])
    younger.handle(Lost(records[1].id, "it was silent", False))
    assert younger.cut_off_from() == []
    protocol.handle(Lost(records[2].id, "it was silent", False))
    assert [record.name for record in protocol.cut_off_from()] == ["b", "c"]
    out = protocol.handle(DeclaredDead("they say so"))
    assert Excluded("they say so") in out
    assert protocol.cut_off_from() == []
    assert protocol.handle(DeclaredDead("they say so")) == []
    (answer,) = protocol.handle(Applied(1, "d", -1, "d", (), "here"))
    assert isinstance(answer, Refuse)


def confirmed(out: list[object]) -> list[list[str]]:
    """Whom the store may be told of as living."""
    return [
        [record.name for record in each.records if record.is_in]
        for each in out
        if isinstance(each, Confirmed)
    ]


def test_who_loses_one_after_the_other_strikes_nobody_out_of_the_store() -> None:
    # It is the eldest, and not alone, when it sees the first one end; but it is itself cut off.
    records = [
        MemberRecord(Member(WorkerInfo(name, rank, 0), (f"memory:{name}",), "here"), rank, name)
        for rank, name in enumerate("abc")
    ]
    protocol = MembershipProtocol(records[0], records[1:])
    out = protocol.handle(Lost(records[1].id, "it was silent", False))
    (notice,) = (each for each in out if isinstance(each, Notice))
    assert confirmed(out + protocol.handle(Ticked())) == []
    of_before = Acknowledgement(records[2].id, notice.number - 1)
    assert confirmed(protocol.handle(of_before)) == []
    assert confirmed(protocol.handle(Lost(records[2].id, "it was silent", False))) == []
    too_late = Acknowledgement(records[2].id, notice.number)
    assert confirmed(protocol.handle(too_late)) == []

    protocol = MembershipProtocol(records[0], records[1:])
    out = protocol.handle(Lost(records[1].id, "it was silent", False))
    (notice,) = (each for each in out if isinstance(each, Notice))
    assert confirmed(protocol.handle(Acknowledgement(records[2].id, notice.number))) == [["a", "c"]]
    assert confirmed(protocol.handle(Ticked())) == []


def test_who_leaves_waits_for_one_acknowledgement_of_that_however_it_was_told() -> None:
    elder, me = (
        MemberRecord(Member(WorkerInfo(name, rank, 0), (f"memory:{name}",), "here"), rank, name)
        for rank, name in enumerate("ab")
    )
    protocol = MembershipProtocol(me, [elder])
    out = protocol.handle(Leaving())
    # An answer to an earlier question is still on its way, and is put right.
    out += protocol.handle(Notice(elder.id, 7, (elder, me), is_whole=True))
    farewell, correction = (each for each in out if isinstance(each, Notice))
    assert farewell.records == correction.records
    assert protocol.handle(Acknowledgement(elder.id, correction.number)) == [Departed()]
    assert protocol.is_settled
