"""`lockstitch run`, as a person uses it: real processes, real signals, a real terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

import lockstitch

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (sys.executable, "-m", "lockstitch")

READY_THEN_WAITS = """
    import os, signal
    try:
        print("ready", flush=True)
        signal.pause()
    finally:
        print("cleaned up", os.environ["RANK"], flush=True)
"""


class Launch(Protocol):
    def __call__(self, script: str, *options: str, n: int = 2) -> subprocess.Popen[str]: ...


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A mark in the environment of everything that the test starts."""
    mark = f"{request.node.name}-{os.getpid()}"
    monkeypatch.setenv("TOKEN_OF_TEST", mark)
    return mark


@pytest.fixture
def launch(tmp_path: Path, token: str) -> Iterator[Launch]:
    """Starts the command on a script in a process group of its own, as a shell would."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *options: str, n: int = 2) -> subprocess.Popen[str]:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(script))
        process = subprocess.Popen(
            [*COMMAND, "run", "-n", str(n), *options, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    assert processes_marked(token) == []


def processes_marked(token: str) -> list[int]:
    """The processes anywhere on this machine that inherited the mark, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"TOKEN_OF_TEST={token}\0" in (folder / "environ").read_text()
        except (OSError, UnicodeDecodeError):
            continue
        if marked and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def wait_until_ready(process: subprocess.Popen[str], workers: int = 2) -> None:
    assert process.stdout is not None
    ready = 0
    while ready < workers:
        line = process.stdout.readline()
        assert line, process.communicate()
        ready += "ready" in line


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Status, lines of stdout sorted (workers take turns as they like), stderr."""
    out, err = process.communicate(timeout=200)
    return process.returncode, sorted(out.splitlines()), err


# ------------------------------------------------------------------ what a worker is told


def test_each_worker_finds_its_place_in_the_environment(launch: Launch) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    status, lines, _ = finish(
        launch(f"import json, os; print(json.dumps([os.environ[n] for n in {names}]))", n=3)
    )
    places = [json.loads(line.partition(" ")[2]) for line in lines]
    assert status == 0
    assert [place[:5] for place in places] == [
        [str(r), "3", str(r), "3", "127.0.0.1"] for r in range(3)
    ]
    assert len({place[5] for place in places}) == 1


def test_output_is_marked_and_stdout_and_stderr_stay_apart(launch: Launch) -> None:
    _, lines, err = finish(
        launch("import os, sys; print('out'); print('err', file=sys.stderr); print('end', end='')")
    )
    assert lines == ["[w0] end", "[w0] out", "[w1] end", "[w1] out"]
    assert sorted(err.splitlines()) == ["[w0] err", "[w1] err"]


def test_workers_do_not_read_the_launchers_stdin(launch: Launch) -> None:
    process = launch("import sys; print(repr(sys.stdin.read()))")
    assert finish(process)[1] == ["[w0] ''", "[w1] ''"]


def test_arguments_after_the_script_are_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.argv[1:])")
    options = ["-n", "5", "--help", "--", "-m"]
    done = subprocess.run(
        [*COMMAND, "run", "-n", "1", "script.py", *options],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"[w0] {options}\n"


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = subprocess.run(
        [*COMMAND, "run", "-n", "1", "-m", "program", "--fast"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "[w0] __main__ ['--fast']\n"


# ------------------------------------------------------------------ failures


def test_first_failure_is_repeated_last_and_is_the_exit_status(launch: Launch) -> None:
    process = launch(
        """
        import os, signal, sys
        if os.environ["RANK"] == "1":
            def broken(): raise ValueError("no such digit")
            try:
                broken()
            except ValueError:
                import traceback; traceback.print_exc()
                sys.exit(7)
        signal.pause()
        """,
        n=3,
    )
    status, _, err = finish(process)
    report = err[err.index("worker 1 failed first: exit code 7") :]
    assert status == 7
    assert "Traceback (most recent call last):" in report
    assert "ValueError: no such digit" in report
    assert "failed too" not in report


def test_worker_that_spoke_its_last_word_first_failed_first(launch: Launch, tmp_path: Path) -> None:
    """Worker 0 fails but is slow to end; worker 1 sees that, fails in turn, and ends at once."""
    sign = tmp_path / "sign"
    os.mkfifo(sign)
    process = launch(
        f"""
        import os, sys, threading
        if os.environ["RANK"] == "0":
            print("the cause", file=sys.stderr, flush=True)
            open({str(sign)!r}, "w").close()
            threading.Event().wait(0.2)
            os._exit(3)
        open({str(sign)!r}).close()
        threading.Event().wait(0.1)
        print("my peer died", file=sys.stderr, flush=True)
        os._exit(4)
        """
    )
    status, _, err = finish(process)
    assert status == 3
    assert "worker 0 failed first: exit code 3" in err
    assert "worker 1 failed too: exit code 4" in err


ENDS_SLOWLY = """
    import atexit, os, signal, sys, threading
    from lockstitch.errors import RankLostError
    pause = threading.Event().wait
    how = sys.argv[1]
    if os.environ["RANK"] == "1":
        pause(0.1)
        raise KeyError("a message of its own") from RankLostError("rank 0 is gone")
    if how in ("raise", "exit"):
        atexit.register(pause, 0.8)
        atexit.register(print, "still here", file=sys.stderr)
    elif how == "thread":
        threading.Thread(target=pause, args=(0.8,)).start()
    elif how in ("finally", "silent", "signal"):
        pause(0.8)
    if how == "exit":
        sys.exit(3)
    if how == "silent":
        os._exit(3)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("the cause")
"""


@pytest.mark.parametrize(
    ("how", "way", "end", "status"),
    [
        ("raise", "here", "exit code 1", 1),
        ("exit", "here", "exit code 3", 3),
        ("signal", "elsewhere", "killed by SIGKILL on host 127.0.0.2", 137),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("thread", "here", "exit code 1", 1),
                ("finally", "here", "exit code 1", 1),
                ("silent", "here", "exit code 3", 3),
                ("signal", "here", "killed by SIGKILL", 137),
                ("raise", "wrapped", "exit code 1", 1),
                ("signal", "wrapped", "exit code 137", 137),
                ("raise", "elsewhere", "exit code 1 on host 127.0.0.2", 1),
            )
        ),
    ],
)
def test_who_fails_by_itself_is_to_blame_however_slowly_it_ends(
    tmp_path: Path, how: str, way: str, end: str, status: int
) -> None:
    """Worker 1 fails because of worker 0, and is gone before it."""
    (tmp_path / "script.py").write_text(textwrap.dedent(ENDS_SLOWLY))
    words, options = [sys.executable, "script.py", how], []
    if way == "wrapped":
        words = ["sh", "-c", f"{shlex.join(words)}; exit $?"]
    if way == "elsewhere":
        (tmp_path / "shell").write_text('#!/bin/sh\nshift; exec "$@"\n')
        (tmp_path / "shell").chmod(0o700)
        options = ["-H", "127.0.0.2:2", "--remote-shell", "./shell"]
    done = subprocess.run(
        [*COMMAND, "run", "-n", "2", *options, *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    report = done.stderr[done.stderr.index("failed first") - len("worker 0 ") :]
    assert report.startswith(f"worker 0 failed first: {end}")
    assert ("ValueError: the cause" in report) == (status == 1)
    assert "worker 1 failed too: exit code 1" in report
    assert "\x1b" not in done.stderr


@pytest.mark.slow
def test_where_all_failed_of_a_lost_peer_it_is_told_how_the_others_stood(launch: Launch) -> None:
    process = launch(
        """
        import os, signal, sys, threading
        from lockstitch.errors import RankLostError
        if os.environ["RANK"] == "0":
            sys.exit()
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait(0.5)
        raise RankLostError("a rank is gone")
        """,
        "--grace=0.1",
        n=3,
    )
    status, _, err = finish(process)
    assert status == 1
    assert "worker 2 failed first: exit code 1" in err
    assert "worker 0 had come to the end of the program before that" in err
    assert "worker 1 stood still, stopped by a signal or a debugger" in err


def test_a_program_may_bring_its_own_first_module_and_sees_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('first')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "script.py").write_text(
        "import subprocess, sys; print(any(folder.endswith('first') for folder in sys.path))\n"
        "done = subprocess.run([sys.executable, '-c', '1/0'], capture_output=True, text=True)\n"
        "print(done.stdout.strip(), ascii(done.stderr[-36:]))"
    )
    done = subprocess.run(
        [*COMMAND, "run", "-n", "1", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "first",  # of the launcher
        "[w0] first",
        "[w0] False",
        "[w0] first 'ZeroDivisionError: division by zero\\n'",
    ]


def test_worker_killed_by_a_signal_gives_the_status_a_shell_would_give(launch: Launch) -> None:
    status, _, err = finish(launch("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", n=1))
    assert status == 128 + signal.SIGSEGV
    assert "worker 0 failed first: killed by SIGSEGV" in err


# ------------------------------------------------------------------ ends


def test_ctrl_c_lets_workers_clean_up_and_leaves_nothing(launch: Launch, token: str) -> None:
    process = launch(READY_THEN_WAITS)
    wait_until_ready(process)
    os.killpg(process.pid, signal.SIGINT)
    status, lines, _ = finish(process)
    assert status == 130
    assert lines == ["[w0] cleaned up 0", "[w1] cleaned up 1"]
    assert processes_marked(token) == []


def test_worker_deaf_to_signals_is_killed_after_the_grace_period(launch: Launch) -> None:
    process = launch(
        """
        import signal
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            signal.pause()
        """,
        "--grace=0.1",
    )
    wait_until_ready(process)
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process)[0] == 130


TIDY = """
    import signal, sys, threading
    from pathlib import Path
    def end(number, frame):
        print("tidying up", flush=True)
        Path("tidy").touch()
        sys.exit()
    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    while not threading.Event().wait(0.01):
        if IS_LOUD:
            print("more", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, None], ids=["told", "unread"])
def test_workers_tidy_up_where_nobody_reads_any_more(
    launch: Launch, tmp_path: Path, number: signal.Signals | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = launch(TIDY.replace("IS_LOUD", str(number is None)), n=1)
    wait_until_ready(process, 1)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    if number is not None:
        os.kill(process.pid, number)
    assert process.wait(60) == (1 if number is None else 129)
    assert (tmp_path / "tidy").exists()


def test_workers_tidy_up_where_a_disk_is_full(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    status, lines, err = finish(
        launch(TIDY.replace("IS_LOUD", "False"), "--output-filename", str(tmp_path), n=1)
    )
    assert (status, lines) == (1, ["[w0] ready", "[w0] tidying up"])
    assert "No space left on device" in err
    assert (tmp_path / "tidy").exists()


def test_a_launcher_needs_no_output(tmp_path: Path) -> None:
    words = [*COMMAND, "run", "-n", "1", "sh", "-c", f"echo said && touch {tmp_path}/ran"]
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words]
    assert subprocess.run(closed, check=False).returncode == 0
    assert (tmp_path / "ran").exists()


def test_a_launcher_that_is_to_ignore_hangups_goes_on(launch: Launch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = launch(READY_THEN_WAITS)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until_ready(process)
    os.kill(process.pid, signal.SIGHUP)
    os.kill(process.pid, signal.SIGINT)
    status, lines, err = finish(process)
    assert (status, "SIGHUP" in err) == (130, False)
    assert len(lines) == 2


def test_second_ctrl_c_does_not_wait_for_the_grace_period(launch: Launch) -> None:
    process = launch(
        """
        import signal
        def deaf(number, frame): print("ready", flush=True)
        signal.signal(signal.SIGINT, deaf)
        print("ready", flush=True)
        while True:
            signal.pause()
        """,
        "--grace=1000",
    )
    wait_until_ready(process)
    os.killpg(process.pid, signal.SIGINT)
    wait_until_ready(process)
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process)[0] == 130


def test_sigterm_to_the_launcher_ends_the_workers(launch: Launch) -> None:
    process = launch(READY_THEN_WAITS)
    wait_until_ready(process)
    process.terminate()
    assert finish(process)[0] == 143


def test_sigusr1_goes_to_the_workers_and_leaves_handlers_of_programs_alone(launch: Launch) -> None:
    process = launch(
        """
        import os, signal
        def answer(number, frame): print("asked", os.environ["RANK"], flush=True)
        if os.environ["RANK"] == "1":
            signal.signal(signal.SIGUSR1, answer)
        print("ready", flush=True)
        while True:
            signal.pause()
        """
    )
    wait_until_ready(process)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    assert process.stdout.readline() == "[w1] asked 1\n"
    assert process.stderr is not None
    assert "is in no group" in process.stderr.readline()
    assert "script.py:8 in <module>" in process.stderr.readline()
    process.terminate()
    assert finish(process)[0] == 143


@pytest.mark.parametrize("python", [[], ["-S"]])
def test_sigusr1_at_any_moment_does_no_harm(tmp_path: Path, python: list[str]) -> None:
    """From before the worker's program is loaded until its process has gone."""
    (tmp_path / "script.py").write_text("print('done')")
    launcher = subprocess.Popen(
        [*COMMAND, "run", "-n", "2", sys.executable, *python, "script.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    asked = 0
    while launcher.poll() is None:
        for worker in children_of(launcher.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGUSR1)
                asked += 1
        threading.Event().wait(0.001)
    assert launcher.communicate()[0].splitlines().count("[w0] done") == 1
    assert launcher.returncode == 0
    assert asked >= 2


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has ended
        return [
            int(child)
            for each in Path(f"/proc/{pid}/task").glob("*/children")
            for child in each.read_text().split()
        ]
    return []


def test_sigusr1_tells_of_calls_and_of_reductions(launch: Launch) -> None:
    process = launch(
        """
        import os, signal, torch
        import lockstitch.hvd as hvd
        from lockstitch import rpc

        hvd.init()
        rank = hvd.rank()
        if rank == 0:
            hvd.allreduce_async(torch.ones(2), name="w")
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        print("ready", flush=True)
        while True:
            signal.pause()
        """
    )
    wait_until_ready(process)
    told: set[str] = set()
    mine = "allreduce 'allreduce.w', submitted ago: rank 1 has not submitted it"
    theirs = "rank 0 waits for 'allreduce.w', which this one has not submitted"
    lines = [
        "worker0: waits",
        f"  rank 0 of 2: {mine}",
        "worker1: waits",
        f"  rank 1 of 2: {theirs}",
    ]
    wanted = {f"[w{rank}] {line}" for rank in (0, 1) for line in lines}
    assert process.stderr is not None
    while told != wanted:
        process.send_signal(signal.SIGUSR1)  # again: it may come just before somebody pauses
        while told != wanted and select.select([process.stderr], [], [], 2)[0]:
            found = os.read(process.stderr.fileno(), 1 << 16).decode()
            told |= {re.sub(r"\d+\.\d s ", "", line) for line in found.splitlines()}
    process.terminate()
    assert process.wait() == 143


def test_workers_die_with_a_killed_launcher(launch: Launch, token: str) -> None:
    process = launch(READY_THEN_WAITS)
    wait_until_ready(process)
    workers = [os.pidfd_open(pid) for pid in processes_marked(token) if pid != process.pid]
    process.kill()
    for worker in workers:
        ended, _, _ = select.select([worker], [], [], 50)
        os.close(worker)
        assert ended
    assert len(workers) == 2


def test_nothing_is_left_among_temporary_files_when_workers_are_killed(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    script = """
        import os, signal
        from lockstitch import rpc

        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            rpc.rpc_sync("worker1", os.kill, (rpc.rpc_sync("worker1", os.getpid), signal.SIGKILL))
        rpc.shutdown()
    """
    process = launch(script)
    _out, err = process.communicate(timeout=60)
    assert "worker 1 failed first: killed by SIGKILL" in err
    assert list(place.iterdir()) == []


def test_what_a_worker_started_and_left_behind_is_ended_too(launch: Launch, token: str) -> None:
    process = launch(
        """
        import subprocess, sys
        subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.pause()"],
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        """,
        "--grace=0.1",
    )
    assert finish(process)[0] == 0
    assert processes_marked(token) == []


def test_reader_that_goes_away_ends_the_job(launch: Launch) -> None:
    process = launch("while True: print('ready', flush=True)")
    wait_until_ready(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=200) == 1
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


# ------------------------------------------------------------------ at a terminal


def test_ctrl_c_typed_at_a_terminal(tmp_path: Path, token: str) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(READY_THEN_WAITS))
    keyboard, terminal = pty.openpty()
    take_terminal = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "os.execv(sys.executable, [sys.executable, '-m', 'lockstitch', *sys.argv[1:]])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", take_terminal, "run", "-n", "2", str(tmp_path / "script.py")],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    with open(keyboard, "r+b", buffering=0) as person:
        seen = b""
        while seen.count(b"ready") < 2:
            seen += person.read(1 << 12)
        person.write(b"\x03")
        while seen.count(b"cleaned up") < 2:
            seen += person.read(1 << 12)
        assert process.wait(timeout=200) == 130
    assert b"\x1b[" in seen  # marks are coloured here
    assert processes_marked(token) == []


# ------------------------------------------------------------------ in the manner of horovodrun


def horovodrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    call = "from lockstitch.launch.cli import horovodrun; horovodrun()"
    return subprocess.run(
        [sys.executable, "-c", call, *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_horovodrun_is_another_name_for_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, sys; print(os.environ['RANK'], sys.argv[1:])")
    done = horovodrun(tmp_path, "-np", "2", "-H", "localhost:2", sys.executable, "script.py", "-np")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[w0] 0 ['-np']", "[w1] 1 ['-np']"]
    assert horovodrun(tmp_path, "--version").stdout.startswith("lockstitch ")


def test_what_is_tuned_reaches_the_workers_and_what_cannot_be_is_told(tmp_path: Path) -> None:
    names = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_TIMELINE"
    (tmp_path / "script.py").write_text(f"import os; print([os.environ[n] for n in {names}])")
    done = horovodrun(
        tmp_path, "-np", "1", "--fusion-threshold-mb", "2", "--timeline-filename", "t.json",
        "--stall-check-warning-time-seconds", "7", "--gloo", "--cycle-time-ms=5", "script.py",
    )  # fmt: skip
    assert done.stdout == "[w0] ['2097152', '7', 't.json']\n"
    assert "without effect here: --cycle-time-ms, --gloo" in done.stderr


def test_a_file_says_what_the_command_line_leaves_open(tmp_path: Path) -> None:
    names = "FUSION_THRESHOLD", "TIMELINE", "TIMELINE_MARK_CYCLES", "LOG_LEVEL", "LOG_HIDE_TIME"
    (tmp_path / "script.py").write_text(
        f"import os; print([os.environ['HOROVOD_' + name] for name in {names}])"
    )
    (tmp_path / "config.yaml").write_text(
        "params: {fusion_threshold_mb: 2, cycle_time_ms: 5}\n"
        "timeline: {filename: t.json, mark_cycles: true}\n"
        "logging: {level: info, with_timestamp: false}\n"
    )
    done = horovodrun(
        tmp_path, "--config-file", "config.yaml", "-np", "1", "--timeline-filename", "mine.json",
        "script.py",
    )  # fmt: skip
    assert done.stdout == "[w0] ['2097152', 'mine.json', '1', 'INFO', '1']\n"
    assert "without effect here, in config.yaml: params.cycle_time_ms" in done.stderr


def test_what_workers_say_goes_to_files_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print('out'); print('err', file=sys.stderr)")
    done = horovodrun(tmp_path, "-np", "2", "--output-filename", "said", "--verbose", "script.py")
    assert "each of 2 workers runs:" in done.stderr
    files = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.glob("said/*/*")}
    assert files == {
        f"said/rank.{rank}/{stream}": text
        for rank in (0, 1)
        for stream, text in (("stdout", "out\n"), ("stderr", "err\n"))
    }


def test_ctrl_c_ends_workers_that_come_and_go(launch: Launch, token: str) -> None:
    process = launch(
        READY_THEN_WAITS.replace('os.environ["RANK"]', 'os.environ["LOCKSTITCH_WORKER"]'),
        "--min-np=1",
    )
    wait_until_ready(process)
    os.killpg(process.pid, signal.SIGINT)
    status, lines, _ = finish(process)
    assert status == 130
    assert lines == ["[w0] cleaned up 0", "[w1] cleaned up 1"]
    assert processes_marked(token) == []


def test_workers_that_come_and_go_and_fail_before_they_have_met_end_the_job(
    launch: Launch,
) -> None:
    status, _, err = finish(launch("raise SystemExit(5)", "--min-np=1"))
    assert status == 5
    assert "workers failed before the ranks had met" in err


# ------------------------------------------------------------------ bad input


def test_bad_input_is_refused_with_a_reason() -> None:
    """Which input is bad: `tests/unit/launch/test_cli.py`."""
    done = subprocess.run([*COMMAND, "run", "-n", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Missing argument" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_the_packages_own() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"lockstitch {lockstitch.__version__}\n"
