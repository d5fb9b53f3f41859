"""A schedule is drawn as a line for each worker and a box for each action."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

from lockstitch.nn.pipelining.picture import draw
from lockstitch.nn.pipelining.schedules import make_schedule
from lockstitch.nn.pipelining.simulation import simulate
from lockstitch.nn.pipelining.steps import StepRecord

SVG = "{http://www.w3.org/2000/svg}"


def boxes(drawn: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(drawn).iter(f"{SVG}rect") if len(each)]


def words(drawn: str) -> str:
    return " ".join(each.text or "" for each in ElementTree.fromstring(drawn).iter(f"{SVG}text"))


def test_plan_has_a_box_for_each_action_and_says_the_bubble():
    drawn = draw(make_schedule("1f1b", range(2), 4), ["left", "a<b"], None)
    assert len(boxes(drawn)) == 16
    assert "1f1b, planned: bubble 20.0%, in theory 20.0%" in words(drawn)
    assert "left" in words(drawn)
    assert "a<b" in words(drawn)


def test_boxes_of_a_worker_do_not_overlap():
    drawn = draw(make_schedule("zero_bubble", range(3), 5), ["a", "b", "c"], None)
    lines: dict[str, list[tuple[float, float]]] = {}
    for box in boxes(drawn):
        begin = float(box.attrib["x"])
        lines.setdefault(box.attrib["y"], []).append((begin, begin + float(box.attrib["width"])))
    assert len(lines) == 3
    for spans in lines.values():
        for (_, end), (begin, _) in pairwise(spans):
            assert begin >= end - 0.11


def test_a_measured_step_is_drawn_below_the_plan_that_has_its_durations():
    schedule = make_schedule("gpipe", range(2), 2)
    seconds = {"F": 2.0, "B": 3.0}
    spans = simulate(schedule, lambda action: seconds[action.work], 1.0)
    record = StepRecord(schedule, tuple(map(tuple, spans)), {})
    drawn = draw(schedule, ["a", "b"], record)
    assert len(boxes(drawn)) == 16
    assert f"measured: bubble {record.bubble:.1%}" in words(drawn)
    plan, measured = (float(box.attrib["width"]) for box in (boxes(drawn)[0], boxes(drawn)[8]))
    assert plan > measured  # the same passes, in less time
