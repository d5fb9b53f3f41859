"""Both ends of a flow have the same key; an end without the other makes none, and is counted."""

from __future__ import annotations

from lockstitch.observe.flows import Flow, Point, find_flows
from tests.unit.observe.traces import span

CALL = span("call", 0, 100, peer="worker1", number=7)
SERVE = span("serve", 20, 60, worker="worker1", peer="worker0", number=7, at=50)


def kinds(*tracks: list) -> tuple[list[tuple[str, int, int]], int]:
    found = find_flows(tracks)
    return [(each.kind, each.begin.at, each.end.at) for each in found.flows], found.cut


def test_a_call_goes_there_and_its_reply_back() -> None:
    found = find_flows([[CALL], [SERVE]])
    assert found.flows == [
        Flow("call", Point(0, 0, 0), Point(1, 0, 20_000)),
        Flow("reply", Point(1, 0, 50_000), Point(0, 0, 99_999)),
    ]
    assert found.cut == 0


def test_the_answer_of_a_parked_request_leaves_where_it_is_concluded() -> None:
    parked = SERVE._replace(at=0)
    end = span("conclude", 80, 90, worker="worker1", peer="worker0", number=7, at=85)
    flows, cut = kinds([CALL], [parked, end])
    assert flows == [("call", 0, 20_000), ("reply", 85_000, 99_999)]
    assert cut == 0


def test_a_call_that_nobody_waits_for_ends_where_its_answer_is_taken_in() -> None:
    send = span("send", 0, 5, peer="worker1", number=7)
    answer = span("answer", 70, 72, peer="worker1", number=7)
    assert kinds([send, answer], [SERVE])[0] == [("call", 0, 20_000), ("reply", 50_000, 70_000)]


def test_what_is_cut_by_the_edge_of_the_window_makes_no_flow() -> None:
    assert kinds([CALL], []) == ([], 2)
    assert kinds([], [SERVE]) == ([], 2)


def test_another_workers_request_of_the_same_number_is_another_one() -> None:
    other = SERVE._replace(peer="worker2")
    assert kinds([CALL], [other]) == ([], 4)


def test_numbers_that_begin_anew_with_a_new_connection_are_joined_in_order() -> None:
    again = CALL._replace(start=200_000, end=300_000)
    served = SERVE._replace(start=220_000, end=260_000, at=250_000)
    flows, cut = kinds([CALL, again], [SERVE, served])
    assert ("call", 200_000, 220_000) in flows
    assert (len(flows), cut) == (4, 0)


def test_a_stitch_leads_to_each_of_its_gradients() -> None:
    stitch = span("stitch", 1, 2, peer="0.0", number=3)
    sent = [
        span("gradient sent", at, at + 1, worker="worker1", peer="0.0", number=3) for at in (5, 9)
    ]
    come = [span("gradient received", at, at + 1, peer="0.0", number=3) for at in (7, 11)]
    flows, cut = kinds([stitch, *come], sent)
    assert sorted(flows) == [
        ("gradient", 5_000, 7_000), ("gradient", 9_000, 11_000),
        ("stitch", 1_000, 7_000), ("stitch", 1_000, 11_000),
    ]  # fmt: skip
    assert cut == 0
    assert kinds([stitch], []) == ([], 0)  # a gradient that never comes is nothing unusual


LATER_BOOT = 5_000_000
"""How far the clock of a host is behind that of another one, which was started earlier."""


def test_numbers_that_begin_anew_are_joined_in_order_between_hosts_of_other_clocks() -> None:
    calls = [CALL, span("call", 1000, 1100, peer="worker1", number=7)]
    late = SERVE._replace(start=1_020_000, end=1_060_000, at=1_050_000)
    for behind in (LATER_BOOT, -LATER_BOOT):
        served = [
            each._replace(start=each.start - behind, end=each.end - behind, at=each.at - behind)
            for each in (SERVE, late)
        ]
        found = find_flows([calls, served], [0, behind])
        pairs = [(it.begin.span, it.end.span) for it in found.flows]
        assert pairs == [(0, 0), (1, 1), (0, 0), (1, 1)]
        assert found.cut == 0


def test_a_stitch_leads_to_each_of_its_gradients_whatever_the_clocks_say() -> None:
    stitch = span("stitch", 100, 110, peer="worker0", number=3)
    came = [span("gradient received", at, at + 5, peer="worker0", number=3) for at in (20, 60)]
    found, cut = kinds([stitch], came)
    assert [each for each in found if each[0] == "stitch"] == [
        ("stitch", 100_000, 20_000),
        ("stitch", 100_000, 60_000),
    ]
    assert cut == 2  # of the gradients


def test_what_was_under_way_before_the_recording_has_no_number() -> None:
    assert kinds([CALL._replace(number=0)], [SERVE._replace(number=0)]) == ([], 0)
