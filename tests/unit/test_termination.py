"""SIGTERM ends a program as its own end does; each case has a process, since it is about one."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

BEGIN = """
    import atexit, os, signal, threading
    from lockstitch.termination import TERMINATION

    TERM = signal.SIGTERM
    atexit.register(print, "handlers")
    TERMINATION.farewells.append(lambda: print("farewell", flush=True))

    def end():
        os.kill(os.getpid(), TERM)
        threading.Event().wait(30)
        print("goes on")
"""
DIED = -signal.SIGTERM


def run(script: str) -> tuple[int, list[str]]:
    program = textwrap.dedent(BEGIN) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.split()


@pytest.mark.parametrize(
    ("script", "status", "printed"),
    [
        # What the program cleans up comes first, then the farewells, then older exit handlers.
        (
            "TERMINATION.install()\ntry: end()\nfinally: print('finally')",
            143,
            ["finally", "farewell", "handlers"],
        ),
        ("TERMINATION.install(); TERMINATION.install(); end()", 143, ["farewell", "handlers"]),
        # Who ends by itself says no such farewell.
        ("TERMINATION.install()", 0, ["handlers"]),
        ("TERMINATION.install(); raise SystemExit(3)", 3, ["handlers"]),
        # Where it ends already, the exit handler that waits is left, and the next one called.
        (
            "atexit.register(end); TERMINATION.install()",
            0,
            ["handlers"],
        ),
        # A program that goes on all the same is ended by the next one.
        ("TERMINATION.install()\ntry: end()\nexcept SystemExit: end()", DIED, []),
        # Somebody else's handlers are left alone.
        (
            "signal.signal(TERM, lambda *_: os._exit(7)); TERMINATION.install(); end()",
            7,
            [],
        ),
        ("signal.signal(TERM, signal.SIG_IGN); TERMINATION.install()\n"
         "os.kill(os.getpid(), TERM)", 0, ["handlers"]),
        ("import faulthandler; faulthandler.register(TERM, file=open(os.devnull, 'w'))\n"
         "TERMINATION.install(); os.kill(os.getpid(), TERM)", 0, ["handlers"]),
        # In another thread than the main one nothing can be installed.
        (
            "thread = threading.Thread(target=TERMINATION.install)\n"
            "thread.start(); thread.join(); end()",
            DIED,
            [],
        ),
    ],
)  # fmt: skip
def test_program_ends(script: str, status: int, printed: list[str]) -> None:
    assert run(script) == (status, printed)


def test_forked_child_ends_at_once_and_says_no_farewell() -> None:
    script = """
        TERMINATION.install()
        if os.fork() == 0:
            end()
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        end()
    """
    assert run(script) == (143, [str(DIED), "farewell", "handlers"])


def test_forked_child_that_becomes_a_worker_handles_it_itself() -> None:
    script = """
        TERMINATION.install()
        if os.fork() == 0:
            TERMINATION.install()
            end()
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        signal.signal(TERM, signal.SIG_DFL)
    """
    status, printed = run(script)
    assert status == 0
    assert "143" in printed
    assert printed.count("farewell") == 1
