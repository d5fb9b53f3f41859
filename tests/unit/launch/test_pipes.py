from __future__ import annotations

import os
import selectors

import pytest

from lockstitch.launch.pipes import Pipes


class Stage:
    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.pipes, self.taken = Pipes(self.selector), []
        reading, self.writing = os.pipe()
        self.pipe = os.fdopen(reading, "rb", 0)

    def follow(self, take=None):
        self.pipes.follow(self.pipe, take or self.taken.append)

    def turn(self):
        for key, _ in self.selector.select(0):
            key.data()


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    os.close(stage.writing)
    stage.pipes.finish(stage.pipe)
    stage.selector.close()


def test_what_comes_is_taken_and_at_its_end_it_is_closed(stage):
    stage.follow()
    for chunk in (b"one", b"two"):
        os.write(stage.writing, chunk)
        stage.turn()
    assert stage.taken == [b"one", b"two"]
    os.close(stage.writing)
    stage.turn()
    assert stage.pipe.closed
    assert not stage.selector.get_map()
    stage.writing = os.dup(0)


def test_what_is_held_waits(stage):
    stage.pipes.hold(True)
    stage.follow()
    os.write(stage.writing, b"one")
    stage.turn()
    assert stage.taken == []
    stage.pipes.hold(False)
    stage.turn()
    assert stage.taken == [b"one"]
    stage.pipes.hold(True)
    os.write(stage.writing, b"two")
    stage.pipes.finish(stage.pipe)
    assert stage.taken == [b"one", b"two"]


def test_what_a_process_leaves_behind_may_write_for_ever(stage):
    stage.follow(lambda chunk: os.write(stage.writing, chunk))
    os.write(stage.writing, b"y\n")
    stage.pipes.finish(stage.pipe)
    assert stage.pipe.closed
    stage.pipes.finish(stage.pipe)
