from __future__ import annotations

import os
import selectors

from lockstitch.launch.discovery import Discovery
from lockstitch.launch.pipes import Pipes
from lockstitch.testing import ManualClock


class Loop:
    """What the launcher's loop does for it."""

    def __init__(self, script):
        self.clock = ManualClock()
        self.selector, self.at_end = selectors.DefaultSelector(), {}
        self.pipes = Pipes(self.selector)
        self.found, self.complaints = [], []
        self.call_at_end = self.at_end.__setitem__
        self.discovery = Discovery(str(script), 4, self.clock, self)
        self.discovery.tell = self.found.append
        self.discovery.complain = self.complaints.append

    def turn(self):
        """Asks, and waits until the script has ended."""
        self.discovery.ask()
        process = self.discovery._process
        if process is not None:
            _, status = os.waitpid(process.pid, 0)
            for key, _ in self.selector.select(0):
                key.data()
            self.at_end.pop(process.pid)(status)
        assert not self.selector.get_map()


def script(folder, text):
    path = folder / "hosts.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def test_hosts_are_told_when_they_change(tmp_path, monkeypatch):
    loop = Loop(script(tmp_path, "cat hosts"))
    monkeypatch.chdir(tmp_path)
    for hosts in ("h1:2", "h1:2", "h1:2\nh2"):
        (tmp_path / "hosts").write_text(hosts)
        loop.turn()
        loop.clock.advance(1.0)
    assert loop.found == [(("h1", 2),), (("h1", 2), ("h2", 4))]
    assert loop.complaints == []


def test_the_script_is_asked_again_a_second_after_its_answer(tmp_path):
    loop = Loop(script(tmp_path, "echo h1"))
    loop.turn()
    assert loop.discovery.seconds_to_next() == 1.0
    loop.clock.advance(0.5)
    loop.discovery.ask()
    assert loop.discovery._process is None
    loop.clock.advance(0.5)
    assert loop.discovery.seconds_to_next() == 0.0


def test_a_script_that_fails_changes_nothing_and_is_complained_of_once(tmp_path):
    path = script(tmp_path, "echo h1; exit 3")
    loop = Loop(path)
    for _ in range(2):
        loop.turn()
        loop.clock.advance(1.0)
    script(tmp_path, "echo not a host")
    loop.turn()
    assert loop.found == []
    assert loop.complaints == [
        f"{path} ended with status 3",
        f"{path}: 'not a host' is no host: write host or host:slots",
    ]


def test_a_script_with_arguments_goes_by_the_shell(tmp_path):
    loop = Loop("echo h1:3")
    loop.turn()
    assert loop.found == [(("h1", 3),)]


def test_a_script_that_fails_again_and_again_is_heard_once(tmp_path, capfd):
    loop = Loop(script(tmp_path, "echo I fail >&2; test -e works && echo h1"))
    for _ in range(3):
        loop.turn()
        loop.clock.advance(1.0)
    assert capfd.readouterr().err.count("I fail") == 1
    assert len(loop.complaints) == 1
