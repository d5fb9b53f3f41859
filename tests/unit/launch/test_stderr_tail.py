"""What is repeated of a worker that failed."""

from __future__ import annotations

from lockstitch.launch.stderr_tail import StderrTail


def words(*lines: str) -> StderrTail:
    made = StderrTail()
    for line in lines:
        made.add(line.encode())
    return made


def test_a_traceback_is_told_with_all_that_follows() -> None:
    lines = ["Traceback (most recent call last):", "  File", "ValueError", "and more"]
    assert words("before", *lines).telling() == [line.encode() for line in lines]


def test_without_one_the_last_few_are_told() -> None:
    assert words(*map(str, range(40))).telling() == [str(n).encode() for n in range(25, 40)]
    assert words().telling() == []


def test_a_crash_is_told_from_its_beginning_however_many_stacks_it_has() -> None:
    stacks = [f"  File {n}" for n in range(200)]
    told = words("before", "Fatal Python error: Segmentation fault", *stacks).telling()
    assert told[0] == b"Fatal Python error: Segmentation fault"
    assert told[-1] == b"  File 199"
    assert len(told) == 201
