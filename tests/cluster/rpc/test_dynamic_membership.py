"""Workers come, leave and die, with references and calls alive; the others know, and say so."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import OwnerDiedError, PeerDiedError, PeerLeftError, RpcTimeoutError
from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.member_records import MemberState
from lockstitch.rendezvous.membership_events import Lost
from lockstitch.rpc import leaving
from lockstitch.testing.faults import Faults
from lockstitch.testing.time_limits import ActiveTimeLimit
from lockstitch.wire.messages import MembershipAcknowledgement, MembershipNotice
from tests.cluster.rpc.groups import LocalGroup, membership, names, wait_until_all_see
from tests.unit.rpc.programs import AT_GATE, GATE, add, close_gate, wait_at_gate
from tests.unit.runtime.stage import wait_until


def run(worker, function, *args, **kwargs):
    with worker.active():
        return function(*args, **kwargs)


def test_who_joins_is_known_to_all_at_once():
    with LocalGroup("a", "b") as group:
        c = group.join("c")
        for worker in group.workers.values():
            assert names(worker) == ["a", "b", "c"]
        assert [info.id for info in run(c, rpc.get_worker_infos)] == [0, 1, 2]
        assert run(group["a"], rpc.rpc_sync, "c", add, (1, 2)) == 3


def test_many_join_at_the_same_time():
    with LocalGroup("a") as group:
        joining = [threading.Thread(target=group.join, args=(f"w{n}",)) for n in range(4)]
        for each in joining:
            each.start()
        for each in joining:
            each.join()
        wait_until_all_see(group, "a", "w0", "w1", "w2", "w3")
        assert sorted(worker.info.id for worker in group.workers.values()) == [0, 1, 2, 3, 4]


def test_joining_takes_nothing_from_the_programs_random_numbers():
    # Programs seed them alike on all workers: newcomers would pass for one another.
    before = random.getstate()
    with LocalGroup("a", "b") as group:
        wait_until_all_see(group, "a", "b")
    assert random.getstate() == before


def test_who_leaves_is_gone_for_all_and_by_name():
    with LocalGroup("a", "b", "c") as group:
        kept = run(group["a"], rpc.remote, "c", add, (1, 2))
        assert run(group["a"], kept.to_here) == 3
        group.leave("c")
        wait_until_all_see(group, "a", "b")
        with pytest.raises(PeerLeftError, match="worker 'c' has left"):
            run(group["b"], rpc.rpc_sync, "c", add, (1, 2))
        with pytest.raises(OwnerDiedError, match="'c'"):
            run(group["a"], kept.to_here)


def test_one_that_has_left_is_reached_until_it_is_told_that_this_is_known():
    with LocalGroup("a", "b") as group:
        protocol = membership(group["b"])._protocol
        directory, a = group["b"].agent.peers._directory, protocol.records.find("a")
        directory.update([protocol.me], a.ended(MemberState.LEFT, "it has left"))
        directory.connect(a.member.info, 60).close()  # perhaps it never was before
        directory.update([protocol.me], a.ended(MemberState.DIED, "it was silent"))
        with pytest.raises(ConnectionError, match="not in the group any more: it was silent"):
            directory.connect(a.member.info, 60)


def test_leaving_waits_for_what_was_begun():
    close_gate()
    with LocalGroup("a", "b") as group:
        answer = run(group["a"], rpc.rpc_async, "b", wait_at_gate)
        assert AT_GATE.wait(60)
        left = threading.Thread(target=group.leave, args=("b",))
        left.start()
        left.join(0.05)
        assert left.is_alive()
        GATE.set()
        left.join()
        assert answer.wait() == "through"
        wait_until_all_see(group, "a")


def test_leaving_with_a_context_open_ends_it_with_an_error_for_the_others():
    with LocalGroup("a", "b") as group, group["a"].active():
        weight = rpc.remote("b", torch.ones, (2,), {"requires_grad": True})
        with pytest.raises(RuntimeError, match="'b'"), autograd.context() as context:  # noqa: PT012
            loss = weight.to_here().sum()
            group.leave("b")
            autograd.backward(context, [loss])


def test_the_first_may_leave_and_newcomers_name_any_member():
    with LocalGroup("a", "b", "c") as group:
        group.leave("a")
        wait_until_all_see(group, "b", "c")
        d = group.join("d", through="c")
        assert sorted(names(d)) == ["b", "c", "d"]
        wait_until_all_see(group, "b", "c", "d")
        e = group.join("e")  # the store knows who lives, too
        assert run(e, rpc.rpc_sync, "b", add, (1, 2)) == 3


def test_a_death_is_seen_by_those_who_never_spoke_to_the_dead():
    with LocalGroup("a", "b", "c", "d") as group:
        group.kill("c")
        wait_until_all_see(group, "a", "b", "d")
        with pytest.raises(PeerDiedError, match="'c' died"):
            run(group["d"], rpc.rpc_sync, "c", add, (1, 2))


def test_the_eldest_dies_and_another_one_lets_newcomers_in():
    with LocalGroup("a", "b", "c") as group:
        group.kill("a")
        d = group.join("d", through="c")
        assert d.info.id == 0  # the lowest rank that is free
        assert d.info.generation == 1
        wait_until_all_see(group, "b", "c", "d")


@pytest.mark.parametrize("dead", ["ab", "bc", "abc", "bd"])
def test_several_die_at_once_and_a_newcomer_names_one_that_is_left(dead):
    with LocalGroup(*"abcde") as group:
        for name in dead:
            group.kill(name)
        left = [name for name in "abcde" if name not in dead]
        wait_until_all_see(group, *left)
        group.join("f", through=left[-1])  # no store has any part in it
        wait_until_all_see(group, *left, "f")


def test_when_all_are_dead_the_next_founds_the_group_anew():
    with LocalGroup("a", "b") as group:
        first = group["a"].info
        group.kill("a")
        group.kill("b")
        again = group.join("a")
        assert names(again) == ["a"]
        assert again.info.worker != first.worker


def test_a_replacement_is_another_generation_and_old_references_say_so():
    with LocalGroup("a", "b") as group:
        old = group["b"].info
        kept = run(group["a"], rpc.remote, "b", add, (1, 2))
        assert run(group["a"], kept.to_here) == 3
        group.kill("b")
        group.join("b")
        new = run(group["a"], rpc.wait_for_worker, "b", 60, after=old)
        assert (new.id, new.generation) == (old.id, old.generation + 1)
        assert run(group["a"], rpc.rpc_sync, "b", add, (1, 2)) == 3
        with pytest.raises(OwnerDiedError, match="'b'"):
            run(group["a"], kept.to_here)


def test_a_name_in_use_is_refused():
    with LocalGroup("a", "b") as group:
        with pytest.raises(RuntimeError, match="RPC worker name b is not unique"):
            group.join("b")
        with pytest.raises(RuntimeError, match="rank 1 is taken by worker b"):
            group.join("c", rank=1)
        assert names(group["a"]) == ["a", "b"]


def test_waiting_for_a_worker_ends_with_its_arrival_or_says_who_is_here():
    with LocalGroup("a") as group:
        found = []

        def wait() -> None:
            found.append(run(group["a"], rpc.wait_for_worker, "b", 60))

        waiting = threading.Thread(target=wait)
        waiting.start()
        group.join("b")
        waiting.join()
        assert found == [WorkerInfo("b", 1)]
        with pytest.raises(RpcTimeoutError, match="sees a, b"):
            run(group["a"], rpc.wait_for_worker, "c", 0.01)


def test_callbacks_hear_of_everything_in_order():
    heard, done = [], threading.Event()

    def callback(event) -> None:
        heard.append((event.kind, event.worker.name, event.worker.generation))
        if len(heard) == 5:
            done.set()

    with LocalGroup("a", "b") as group:
        end = run(group["a"], rpc.add_membership_callback, callback)
        group.join("c")
        group.leave("c")
        wait_until_all_see(group, "a", "b")
        group.kill("b")
        wait_until_all_see(group, "a")
        group.join("b")
        assert done.wait(60)
        end()
        group.leave("b")
        wait_until_all_see(group, "a")
    assert heard == [
        ("joined", "b", 0),
        ("joined", "c", 0),
        ("left", "c", 0),
        ("died", "b", 0),
        ("joined", "b", 1),
    ]


@pytest.mark.parametrize("message", [MembershipNotice, MembershipAcknowledgement])
def test_lost_tidings_are_told_again(message):
    faults = Faults().drop(message, times=3)
    with LocalGroup("a", "b", faults=faults) as group:
        group.join("c")
        group.kill("b")
        wait_until_all_see(group, "a", "c")


def test_what_a_callback_raises_is_printed_and_raised_at_the_end(monkeypatch):
    printed = []
    monkeypatch.setattr("sys.excepthook", lambda _kind, error, _trace: printed.append(str(error)))

    def callback(event) -> None:
        raise KeyError(event.worker.name)

    with LocalGroup("a", "b") as group:
        run(group["a"], rpc.add_membership_callback, callback)
        a = group.workers.pop("a")
        leaving.leave_alone(a, 60)
        with pytest.raises(KeyError, match="b"):
            leaving.finish(a, ignore_leaks=True)
        wait_until_all_see(group, "b")
    assert printed == ["'b'"]


def test_invitations_name_a_member():
    with LocalGroup("a") as group:
        assert run(group["a"], rpc.invitation) == "lockstitch://memory:a/1"
        assert membership(group["a"]).is_static is False


def test_who_is_taken_for_dead_says_so_and_may_join_anew(monkeypatch):
    printed = []
    monkeypatch.setattr("sys.excepthook", lambda _kind, error, _trace: printed.append(str(error)))
    with LocalGroup("a", "b") as group:
        b = group["b"]
        b_as_a_sees_it = membership(group["a"])._protocol.records.find("b")
        dead = b_as_a_sees_it.ended(MemberState.DIED, "it was silent")
        membership(group["a"])._handle(Lost(b.id, "it was silent"))  # it lives, cut off
        membership(b)._take_notice(group["a"].id, MembershipNotice(9, False, (dead.plain(),)))
        time_limit = ActiveTimeLimit(60)
        while not printed and not time_limit.is_over():
            threading.Event().wait(0.005)
        with pytest.raises(PeerDiedError, match="'a' died"):
            run(b, rpc.rpc_sync, "a", add, (1, 2))
        assert "struck worker 'b' out of the group (it was silent)" in printed[0]
        group.kill("b")
        again = group.join("b")
        assert again.info.generation == 1
        assert run(again, rpc.rpc_sync, "a", add, (1, 2)) == 3


def test_one_that_was_cut_off_alone_hears_from_the_others_that_it_is_out(monkeypatch):
    printed = []
    monkeypatch.setattr("sys.excepthook", lambda _kind, error, _trace: printed.append(str(error)))
    with LocalGroup("a", "b", "c") as group:
        a = group["a"]
        # Those who stay first: they might believe what one that is cut off says of the other.
        for one, other in (("b", "a"), ("c", "a"), ("a", "b"), ("a", "c")):
            membership(group[one])._handle(Lost(group[other].id, "it was silent"))
        time_limit = ActiveTimeLimit(60)
        while not printed and not time_limit.is_over():
            if membership(a)._asking_the_dead.acquire(blocking=False):
                membership(a)._ask_the_dead()
            threading.Event().wait(0.01)
        assert "struck worker 'a' out of the group (it has given this worker up as" in printed[0]
        assert [names(group[each]) for each in "bc"] == [["b", "c"]] * 2
        assert run(group["b"], rpc.rpc_sync, "c", add, (1, 2)) == 3
        group.kill("a")


def test_one_that_is_cut_off_and_reaches_the_store_takes_nobody_out_of_it():
    with LocalGroup("a", "b", "c") as group:
        for one, other in (("b", "a"), ("c", "a"), ("a", "b"), ("a", "c")):
            membership(group[one])._handle(Lost(group[other].id, "it was silent"))
        wait_until(lambda: named_in(group) == ["b", "c"])
        group.kill("c")
        group.join("d")
        wait_until(lambda: [sorted(names(group[each])) for each in "bd"] == [["b", "d"]] * 2)
        group.kill("a")


def named_in(group: LocalGroup) -> list[str]:
    """Whom a newcomer finds in the store."""
    return [member.info.name for member in Contacts(group.store).read().members.values()]


def test_who_came_by_invitation_is_found_by_the_store_too():
    with LocalGroup("a", "b") as group:
        group.join("c", through="b")
        wait_until(lambda: named_in(group) == ["a", "b", "c"])
        group.leave("a")
        group.leave("b")
        d = group.join("d")
        assert sorted(names(d)) == ["c", "d"]


CUT = [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]


def test_two_groups_that_a_cut_has_parted_say_so_when_it_is_over(monkeypatch):
    printed = []
    monkeypatch.setattr("sys.excepthook", lambda _kind, error, _trace: printed.append(str(error)))
    with LocalGroup("a", "b", "c", "d") as group:
        for here, there in CUT:
            group.network.partition(here, there)
        for here, there in CUT:
            membership(group[here])._handle(Lost(group[there].id, "it was silent"))
            membership(group[there])._handle(Lost(group[here].id, "it was silent"))
        two = [["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"]]
        wait_until(lambda: [names(group[each]) for each in "abcd"] == two)
        for here, there in CUT:
            group.network.heal(here, there)
        time_limit = ActiveTimeLimit(60)
        while len(printed) < 2 and not time_limit.is_over():
            for each in "abcd":
                if membership(group[each])._asking_the_dead.acquire(blocking=False):
                    membership(group[each])._ask_the_dead()
            threading.Event().wait(0.01)
        assert sorted(line.partition(" were")[0] for line in printed) == [
            "workers a, b",
            "workers c, d",
        ]
        assert all("for dead: the group goes on as two" in line for line in printed)
        assert [names(group[each]) for each in "abcd"] == two
        assert not membership(group["a"])._dead_to_ask()  # it says so once


def test_those_whose_process_has_ended_are_asked_once():
    with LocalGroup("a", "b", "c") as group:
        group.kill("c")
        wait_until_all_see(group, "a", "b")
        a = membership(group["a"])
        assert a._asking_the_dead.acquire(timeout=60)
        a._ask_the_dead()
        assert not a._dead_to_ask()


def test_of_two_that_were_cut_off_from_each_other_the_elder_stays(monkeypatch):
    printed = []
    monkeypatch.setattr("sys.excepthook", lambda _kind, error, _trace: printed.append(str(error)))
    with LocalGroup("a", "b") as group:
        a, b = group["a"], group["b"]
        membership(a)._handle(Lost(b.id, "it was silent"))
        membership(b)._handle(Lost(a.id, "it was silent"))
        time_limit = ActiveTimeLimit(60)
        while not printed and not time_limit.is_over():
            for each in (a, b):
                if membership(each)._asking_the_dead.acquire(blocking=False):
                    membership(each)._ask_the_dead()
            threading.Event().wait(0.01)
        assert "struck worker 'b' out of the group" in printed[0]
        assert len(printed) == 1
        c = group.join("c", through="a")
        assert run(c, rpc.rpc_sync, "a", add, (1, 2)) == 3
