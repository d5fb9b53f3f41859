"""Looking at a job again and again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from lockstitch.dashboard.watching import ProcessEnds, Watcher
from tests.unit.attach.cards import process
from tests.unit.dashboard.looks import Looks
from tests.unit.observe.jobs import idle, job

PATIENCE_SECONDS = 60


def test_everybody_hears_of_each_look_and_of_the_end() -> None:
    async def hear(watcher: Watcher) -> list[tuple[bool, int]]:
        return [
            (state.ended_at is not None, len(points)) async for state, points in watcher.updates()
        ]

    async def run() -> tuple[list[list[tuple[bool, int]]], list[tuple[bool, int]]]:
        watcher = Watcher(Looks(job(idle(0)), job(idle(0))), every_seconds=0.01)
        heard = [asyncio.create_task(hear(watcher)) for _ in range(2)]
        await asyncio.sleep(0)
        await watcher.run()
        return [await each for each in heard], await hear(watcher)

    heard, late = asyncio.run(run())
    for each in heard:
        assert each[-1] == (True, 0)
        assert sum(points for _, points in each) == 2
    assert late == [(True, 2)]  # who comes late hears of all at once


def test_what_is_wrong_with_a_look_is_raised_and_ends_the_updates() -> None:
    class Refused:
        def look(self, question: object) -> object:
            raise PermissionError("the folder can be entered by others")

    async def run() -> list[object]:
        watcher = Watcher(Refused())  # type: ignore[arg-type]
        with pytest.raises(PermissionError, match="entered by others"):
            await watcher.run()
        return [each async for each in watcher.updates()]

    assert asyncio.run(run()) == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system tells of no ends")
def test_the_end_of_a_process_of_this_host_is_noticed_at_once() -> None:
    async def run() -> None:
        waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(waiting, stdin=subprocess.PIPE) as child:
            ends = ProcessEnds()
            here, elsewhere = process(child.pid), process(os.getpid())
            ends.await_those_of(job(replace(here, host=os.uname().nodename), elsewhere))
            assert repr(ends) == "<ProcessEnds of 1 processes>"
            child.kill()
            await asyncio.wait_for(ends.wait(PATIENCE_SECONDS * 2), PATIENCE_SECONDS)
            ends.close()
            ends.close()

    asyncio.run(run())


def test_without_an_end_the_wait_takes_its_time() -> None:
    async def run() -> None:
        ends = ProcessEnds()
        await asyncio.wait_for(ends.wait(0.01), PATIENCE_SECONDS)

    asyncio.run(run())
