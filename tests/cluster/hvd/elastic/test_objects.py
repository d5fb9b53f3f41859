from __future__ import annotations

import pytest

from lockstitch.hvd.elastic import HostsUpdatedInterrupt, ObjectState, State
from lockstitch.hvd.elastic.objects import HostUpdateResult


def state_of(**kwargs):
    return ObjectState(bcast_object=lambda value: value, get_rank=lambda: 0, **kwargs)


def test_attributes_go_back_to_the_last_commit():
    state = state_of(epoch=0, seen=[])
    state.epoch, state.seen = 1, ["a"]
    state.commit()
    state.epoch = 2
    state.seen.append("b")
    state.restore()
    assert (state.epoch, state.seen) == (1, ["a"])
    state.seen.append("c")
    state.restore()
    assert state.seen == ["a"]


def test_what_was_never_committed_goes_back_to_the_beginning():
    state = state_of(epoch=5)
    state.epoch = 6
    state.restore()
    assert state.epoch == 5


def test_sync_takes_what_rank_0_has_now_and_keeps_it():
    sent = []

    def broadcast(value):
        sent.append(value)
        return {"epoch": 9}

    state = ObjectState(bcast_object=broadcast, get_rank=lambda: 1, epoch=0)
    state.epoch = 3
    state.sync()
    assert sent == [{"epoch": 3}]
    assert state.epoch == 9
    state.epoch = 10
    state.restore()
    assert state.epoch == 9


def test_news_of_workers_interrupt_once_at_the_next_commit():
    state = state_of(epoch=0)
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.epoch = 1
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert not caught.value.skip_sync
    state.restore()
    assert state.epoch == 1
    state.commit()


def test_workers_that_only_leave_bring_no_new_state():
    state = state_of()
    state.on_hosts_updated(1, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert caught.value.skip_sync


def test_rank_0_decides_whether_all_are_interrupted():
    elsewhere = ObjectState(bcast_object=lambda _mine: (0.0, 0.0, 0), get_rank=lambda: 1)
    elsewhere.on_hosts_updated(1, HostUpdateResult.added)
    elsewhere.check_host_updates()  # rank 0 has not heard of it yet
    elsewhere = ObjectState(bcast_object=lambda _mine: (0.0, 2.0, 2), get_rank=lambda: 1)
    with pytest.raises(HostsUpdatedInterrupt):
        elsewhere.check_host_updates()


def test_a_new_world_settles_what_was_heard_before_and_calls_back_in_order():
    state = state_of()
    called = []
    state.register_reset_callbacks([lambda: called.append(1), lambda: called.append(2)])
    state.register_reset_callbacks([lambda: called.append(3)])
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.on_reset()
    state.check_host_updates()
    assert called == [1, 2, 3]


@pytest.mark.parametrize("method", ["save", "restore", "sync"])
def test_a_state_of_ones_own_says_how_it_is_kept(method):
    with pytest.raises(NotImplementedError):
        getattr(State(lambda value: value, lambda: 0), method)()
