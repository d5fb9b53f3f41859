"""Figures can be read in the pictures: nothing covers them, and axes are labelled."""

from __future__ import annotations

from matplotlib import pyplot as plt

from benchmarks.pictures import Curve, draw_curves, draw_ratios
from benchmarks.result import Figure, Row


def test_mark_of_a_target_that_is_missed_does_not_cover_the_figure():
    row = Row("calls", "no-op", "s", Figure(1e-5), Figure(8e-5), ratio=0.125, ratio_target=0.1)
    picture = draw_ratios([row])
    (axes,) = picture.axes
    (text,) = axes.texts
    (mark,) = (line.get_xdata()[0] for line in axes.lines)
    assert text.get_text() == "8 ×"
    assert mark == 10
    assert text.xy[0] >= mark
    plt.close(picture)


def test_axis_of_less_than_two_decades_has_several_labels():
    rows = [
        Row("growth: start of a world", f"{x} processes", "s", Figure(x * 8e-3), Figure(), x=x)
        for x in (2, 4, 8)
    ]
    picture = draw_curves(rows, [Curve("growth: start of a world", "processes", "seconds")])
    (axes,) = picture.axes
    picture.canvas.draw()
    low, high = axes.get_ylim()
    shown = [
        label.get_text()
        for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if low <= place <= high
    ]
    assert shown == ["20.0 ms", "50.0 ms"]
    plt.close(picture)
