"""Figures are shown in units that people read, in the terminal and in Markdown alike."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from benchmarks.page import BEGIN, END, with_figures
from benchmarks.pictures import draw_pictures
from benchmarks.report import Report
from benchmarks.result import Figure, Row
from benchmarks.table import build_table, show, show_seconds, show_value, write_markdown

ROWS = [
    Row(
        "calls",
        "no-op",
        "s",
        Figure(20e-6, (19e-6, 21e-6), 40e-6, samples=200),
        Figure(200e-6),
        Figure(10e-6),
        0.1,
        2.0,
        "≤ 0.2, p99 ≤ 1 ms",
        0.2,
        True,
    ),
    Row("backward", "unused", "s", Figure(1e-3), Figure(note="hangs", error="no answer")),
    Row("backward, by hops", "1 hop", "s", Figure(1e-3), Figure(2e-3), ratio=0.5, x=1),
    Row("backward, by hops", "2 hops", "s", Figure(2e-3), Figure(4e-3), ratio=0.5, x=2),
    Row("growth: threads of a worker", "2 processes", "", Figure(2.5), Figure(38), x=2),
]
REPORT = Report("a machine", "today", "python -m benchmarks", 12.0, ROWS)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.234e-6, "1.23 µs"),
        (12.34e-6, "12.3 µs"),
        (123.4e-6, "123 µs"),
        (1.5e-3, "1.50 ms"),
        (0.75, "750 ms"),
        (12.0, "12.0 s"),
    ],
)
def test_seconds_have_three_digits_that_matter(seconds, text) -> None:
    assert show_seconds(seconds) == text


def test_other_units() -> None:
    assert show_value(0.0012, "share") == "0.12 %"
    assert show_value(12345.6, "/s") == "12,346 /s"
    assert show_value(1.234, "GB/s") == "1.23 GB/s"
    assert show_value(2.5, "") == "2.5"
    assert show_value(38.0, "") == "38"


def test_brackets_tell_the_first_transfer_or_the_99th_percentile() -> None:
    assert show(Figure(2.0, first=0.5), "GB/s") == "2.00 GB/s (0.5)"
    assert show(Figure(1e-3, p99=5e-3), "s", tells_p99=True) == "1.00 ms (5.00 ms)"
    assert show(Figure(1e-3, p99=5e-3), "s") == "1.00 ms"
    assert show(Figure(note="hangs"), "s") == "hangs"


def test_the_terminal_shows_every_row_under_its_section() -> None:
    console = Console(width=150, file=io.StringIO())
    console.print(build_table(ROWS, "a caption"))
    text = console.file.getvalue()
    for word in ("calls", "no-op", "20.0 µs (40.0 µs)", "200 µs", "2 ×", "✓", "hangs", "a caption"):
        assert word in text
    assert text.count("backward, by hops") == 1


def test_markdown_has_a_table_for_each_section() -> None:
    text = write_markdown(ROWS)
    assert text.count("| case | Lockstitch | PyTorch |") == 4
    assert "| unused | 1.00 ms | hangs |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_a_report_is_read_as_it_was_written(tmp_path) -> None:
    path = tmp_path / "folder" / "report.json"
    REPORT.write(path)
    assert Report.read(path) == REPORT


def test_parts_of_a_run_are_put_together_in_the_order_of_the_plan() -> None:
    newer = dataclasses.replace(ROWS[0], name="no-op", ratio=0.3)
    machine = "a machine · load before 1.5"
    parts = [
        Report(machine, "today", "bench --only calls", 5.0, [ROWS[2], ROWS[4], ROWS[0]]),
        Report(
            machine.replace("1.5", "0.25"), "later", "bench --only 'a b'", 7.0, [newer, ROWS[1]]
        ),
    ]
    whole = Report.join(parts)
    assert whole.rows == [newer, ROWS[1], ROWS[2], ROWS[4]]
    assert (whole.command, whole.seconds) == ("bench, in parts", 12.0)
    with pytest.raises(ValueError, match="not of one machine"):
        Report.join([parts[0], dataclasses.replace(parts[1], machine="another")])


def test_the_page_keeps_its_words_and_takes_new_figures() -> None:
    page = f"# Title\n\nWords.\n\n{BEGIN}\nold figures\n{END}\n\nMore words.\n"
    rendered = with_figures(page, REPORT)
    assert "old figures" not in rendered
    assert "| no-op | 20.0 µs" in rendered
    assert rendered.startswith("# Title\n\nWords.\n")
    assert rendered.endswith("\n\nMore words.\n")
    assert with_figures(rendered, REPORT) == rendered
    with pytest.raises(ValueError, match="the page needs the marks"):
        with_figures("# Title\n", REPORT)


def test_pictures_are_small_and_the_same_each_time(tmp_path) -> None:
    paths = draw_pictures(REPORT, tmp_path / "one")
    again = draw_pictures(REPORT, tmp_path / "two")
    assert [path.name for path in paths] == ["ratios.svg", "costs.svg", "growth.svg"]
    for path, other in zip(paths, again, strict=True):
        content = path.read_bytes()
        assert b"<svg" in content
        assert len(content) < 150_000
        assert content == other.read_bytes()


def test_nothing_is_drawn_of_nothing(tmp_path) -> None:
    assert draw_pictures(Report("", "", "", 0.0, []), tmp_path) == []
