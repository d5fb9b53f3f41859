from __future__ import annotations

from lockstitch.ids import GlobalId, WorkerId
from lockstitch.rref.events import Send
from lockstitch.rref.outbox import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, Outbox
from lockstitch.wire.messages import ForkAccept

A, B = WorkerId(0, 0), WorkerId(1, 0)
TO_A = Send(A, ForkAccept(GlobalId(0, 0, 1)))
TO_B = Send(B, ForkAccept(GlobalId(0, 0, 2)))


def times_sent(outbox: Outbox, ticks: range) -> list[int]:
    """At which ticks something was sent, in units of the first pause."""
    return [now for now in ticks if outbox.tick(now * FIRST_RETRY_SECONDS)]


def test_a_message_is_repeated_ever_more_rarely_until_it_is_settled():
    outbox = Outbox()
    outbox.put("key", TO_A)
    assert times_sent(outbox, range(16)) == [1, 3, 7, 15]
    assert outbox.settle("key")
    assert times_sent(outbox, range(16, 100)) == []


def test_the_pause_grows_no_further_than_its_limit():
    outbox = Outbox()
    outbox.put("key", TO_A)
    sent = times_sent(outbox, range(300))
    assert (sent[-1] - sent[-2]) * FIRST_RETRY_SECONDS == LAST_RETRY_SECONDS


def test_the_first_pause_begins_with_the_first_tick_however_late_it_is():
    outbox = Outbox()
    outbox.put("key", TO_A)
    assert outbox.tick(1000.0) == []
    assert outbox.tick(1000.0 + 0.9 * FIRST_RETRY_SECONDS) == []
    assert outbox.tick(1000.0 + FIRST_RETRY_SECONDS) == [TO_A]


def test_settling_twice_is_harmless_and_says_so():
    outbox = Outbox()
    outbox.put("key", TO_A)
    assert [outbox.settle("key"), outbox.settle("key")] == [True, False]


def test_what_a_dead_worker_should_get_is_forgotten():
    outbox = Outbox()
    outbox.put("a", TO_A)
    outbox.put("b", TO_B)
    outbox.forget(A)
    outbox.tick(0.0)
    assert outbox.tick(1.0) == [TO_B]
