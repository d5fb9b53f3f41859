"""Which frames a rule strikes, and what several rules do together."""

from __future__ import annotations

from lockstitch.testing.faults import Faults
from lockstitch.transport.memory import Break, Deliver, Kill
from lockstitch.wire.messages import Call, Reply


def fates(faults: Faults, *kinds: int, sender: str = "w0", to: str = "w1") -> list[list]:
    return [faults.apply(sender, to, kind) for kind in kinds]


def test_without_rules_frames_are_delivered():
    assert fates(Faults(), Call.KIND) == [[Deliver()]]


def test_a_rule_strikes_the_first_of_its_kind_unless_told_otherwise():
    faults = Faults().drop(Call)
    assert fates(faults, Reply.KIND, Call.KIND, Call.KIND) == [[Deliver()], [], [Deliver()]]


def test_nth_and_times_choose_a_stretch():
    faults = Faults().drop(Call, nth=2, times=2)
    assert fates(faults, *[Call.KIND] * 4) == [[Deliver()], [], [], [Deliver()]]


def test_no_times_is_for_ever_and_no_class_is_every_frame():
    faults = Faults().drop(nth=2, times=None)
    assert fates(faults, Call.KIND, Reply.KIND, Call.KIND) == [[Deliver()], [], []]


def test_sender_and_receiver_narrow_a_rule_and_others_do_not_count():
    faults = Faults().drop(Call, nth=2, sender="w0", to="w2")
    assert fates(faults, Call.KIND, Call.KIND, to="w1") == [[Deliver()]] * 2
    assert fates(faults, Call.KIND, sender="w1", to="w2") == [[Deliver()]]
    assert fates(faults, Call.KIND, Call.KIND, to="w2") == [[Deliver()], []]


def test_rules_alter_what_earlier_ones_left():
    late_twice = Faults().repeat(Call).delay(Call, by=2).delay(Call, by=1)
    assert fates(late_twice, Call.KIND) == [[Deliver(3), Deliver(3)]]
    swapped = Faults().reorder(Call, behind=2).kill("w1", after=Call)
    assert fates(swapped, Call.KIND) == [[Deliver(behind=2), Kill("w1")]]
    killed_unheard = Faults().kill("w1", after=Call).drop(Call).delay(Call, by=1).reorder(Call)
    assert fates(killed_unheard, Call.KIND) == [[Kill("w1")]]


def test_a_worker_dies_of_its_own_frames_only():
    faults = Faults().kill("w2", after=Call, nth=2)
    assert fates(faults, Call.KIND, Call.KIND) == [[Deliver()]] * 2
    assert fates(faults, Call.KIND, to="w2") == [[Deliver()]]
    assert fates(faults, Call.KIND, sender="w2") == [[Deliver(), Kill("w2")]]


def test_rules_may_be_added_while_the_script_is_played():
    faults = Faults()
    assert fates(faults, Call.KIND) == [[Deliver()]]
    faults.drop(Call)
    assert fates(faults, Call.KIND) == [[]]


def test_a_script_reads_as_it_was_written():
    faults = Faults().drop(Call, nth=2, to="w1").delay(by=5, times=None).kill("w2", after=Reply)
    fates(faults, Call.KIND)
    assert repr(faults) == (
        "<Faults: drop(Call, nth=2, to='w1') [1 seen] · delay(any, by=5, times=None) [1 seen] · "
        "kill(Reply, worker='w2') [0 seen]>"
    )
    assert repr(Faults()) == "<Faults: none>"


def test_connections_break_before_a_frame_arrives_or_after():
    before = Faults().break_connections(Call, before=True)
    assert fates(before, Call.KIND) == [[Break(own=True, others=True), Deliver()]]
    after = Faults().break_connections(Call, own=False)
    assert fates(after, Call.KIND) == [[Deliver(), Break(own=False, others=True)]]
