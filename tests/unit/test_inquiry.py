"""SIGUSR1 asks and never kills; each case is a process of its own, since it is about a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from lockstitch.inquiry import catches

TOLD = "is in no group"
BEGIN = """
    import faulthandler, os, signal, threading
    from lockstitch.inquiry import INQUIRY, tell_of_crashes
    USR1 = signal.SIGUSR1
    told = threading.Event()

    def told_at_last():
        told.set()
        return "told"

    def ask():
        INQUIRY.explain = told_at_last
        os.kill(os.getpid(), USR1)
        assert told.wait(30)
"""


def run(script: str, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    def ignore() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN) + textwrap.dedent(script)],
        capture_output=True, text=True, check=False, preexec_fn=ignore if ignored else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("script", "ignored"),
    [
        ("INQUIRY.install(); INQUIRY.install(); ask()", False),
        ("INQUIRY.install(even_if_ignored=True); ask()", True),
        # While the interpreter is taken down.
        (
            "class Late:\n"
            "    def __del__(self, kill=os.kill, me=os.getpid(), number=USR1): kill(me, number)\n"
            "INQUIRY.install(); ask(); os.late = Late()",
            False,
        ),
        # Of a child that has inherited the handler.
        (
            "INQUIRY.install()\nif os.fork() == 0: ask(); os._exit(0)\n"
            "assert os.wait()[1] == 0; print('told')",
            False,
        ),
        # Where the lock is held that whoever starts a thread takes.
        ("INQUIRY.install()\nwith threading._active_limbo_lock: ask()", False),
    ],
)
def test_who_is_asked_tells_and_goes_on(script: str, ignored: bool) -> None:
    done = run(script, ignored=ignored)
    assert done.returncode == 0, done.stderr
    assert "told" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("script", "ignored"),
    [
        ("signal.signal(USR1, own := lambda *_: None); before = own", False),
        ("faulthandler.register(USR1); before = signal.SIG_DFL", False),
        ("before = signal.SIG_IGN", True),
    ],
)
def test_a_handler_of_the_program_is_left_alone(script: str, ignored: bool) -> None:
    done = run(
        f"{script}\nINQUIRY.install()\nassert signal.getsignal(USR1) is before\n"
        "os.kill(os.getpid(), USR1)",
        ignored=ignored,
    )
    assert done.returncode == 0, done.stderr


def test_the_text_says_who_it_is_and_where_its_main_thread_is() -> None:
    done = run("def stuck(): print(INQUIRY.explain_alone())\nos.environ['RANK'] = '3'; stuck()")
    first, second = done.stdout.splitlines()
    assert first.startswith("worker 3 (pid ")
    assert TOLD in first
    assert second.strip() == "its main thread is at <string>:15 in stuck"


def test_an_error_while_telling_is_told() -> None:
    done = run(
        "INQUIRY.install()\n"
        "def broken(): threading.Timer(0, told.set).start(); raise KeyError('w')\n"
        "INQUIRY.explain = broken; os.kill(os.getpid(), USR1); assert told.wait(30)\n"
        "threading.Event().wait(0.1)"
    )
    assert done.returncode == 0
    assert "cannot tell what it waits for: KeyError('w')" in done.stderr


def test_who_listens_for_a_signal_is_seen() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert not catches(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not catches(2**22 + 1, signal.SIGUSR2)  # beyond the greatest process id


def test_a_crash_leaves_the_stacks_unless_the_program_sees_to_it_itself() -> None:
    done = run("tell_of_crashes()\ndef crash(): os.kill(os.getpid(), signal.SIGSEGV)\ncrash()")
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "in crash" in done.stderr
    done = run(
        "faulthandler.enable(open(os.devnull, 'w')); tell_of_crashes()\n"
        "os.kill(os.getpid(), signal.SIGSEGV)"
    )
    assert done.stderr == ""


@pytest.mark.parametrize("stream", ["None", "open(os.devnull, 'w')", "object()"])
def test_there_may_be_nowhere_to_write_a_crash_to(stream: str) -> None:
    assert (
        run(f"import sys; sys.stderr = sys.__stderr__ = {stream}; tell_of_crashes()").stderr == ""
    )
