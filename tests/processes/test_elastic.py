"""Workers that die and come, as real processes under the launcher."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Whoever stands on a step says so to the others; worker 1 dies once.
PROGRAM = r"""
import os
import signal
import sys

import torch

import lockstitch.hvd as hvd

WORKERS, VICTIM = 2, os.environ["LOCKSTITCH_WORKER"] == "1"

hvd.init()
torch.manual_seed(int(os.environ["LOCKSTITCH_WORKER"]))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0, full_steps=0)
sizes = [hvd.size()]
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])


@hvd.elastic.run
def train(state):
    # Until all are there again and have trained together for a while.
    while state.step < 4 or state.full_steps < 3:
        if VICTIM and state.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        state.step += 1
        state.full_steps = (state.full_steps + 1) * (state.step > 2 and hvd.size() == WORKERS)
        state.commit()


train(state)
weights = hvd.allgather(torch.nn.utils.parameters_to_vector(model.parameters()).detach()[None])
assert len(weights) == WORKERS and torch.equal(weights[0], weights[1])
sys.stdout.write(f"rank {hvd.rank()} through worlds of {sizes}\n")
"""


def run(script, text, *options):
    script.write_text(text)
    command = [sys.executable, "-W", "error", "-m", "lockstitch", "run", *options, str(script)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


def test_a_killed_worker_is_replaced_while_the_other_goes_on(tmp_path):
    done = run(tmp_path / "program.py", PROGRAM, "-np", "2", "--min-np", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    survivor, newcomer = sorted(done.stdout.splitlines())
    # Alone in between, unless this machine was too busy to let it see the death for seconds.
    assert re.fullmatch(r"\[w0\] rank 0 through worlds of \[2, (1, )?2\]", survivor)
    assert newcomer == "[w2] rank 1 through worlds of [2]"
    assert "worker 1 has ended: killed by SIGKILL" in done.stderr


# Worker 1 is killed by a call of worker 0's; who is started in its place comes under its name.
OF_RPC = r"""
import os
import signal
import sys

from lockstitch import rpc

name = "server" if os.environ["LOCKSTITCH_WORKER"] == "0" else "trainer"
rpc.init_rpc(name)
if name == "server":
    first = rpc.wait_for_worker("trainer", timeout=120)
    rpc.rpc_async("trainer", os.kill, args=(rpc.rpc_sync("trainer", os.getpid), signal.SIGKILL))
    second = rpc.wait_for_worker("trainer", timeout=120, after=first)
    sys.stdout.write(f"{second.id == first.id} {rpc.rpc_sync('trainer', max, args=(3, 5))}\n")
else:
    rpc.wait_for_worker("server", timeout=120)
rpc.shutdown()
"""


@pytest.mark.slow
def test_workers_of_rpc_find_each_other_at_the_launcher_also_those_that_come_later(tmp_path):
    done = run(tmp_path / "program.py", OF_RPC, "-np", "2", "--min-np", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[w0] True 5" in done.stdout
    assert "worker 1 has ended: killed by SIGKILL" in done.stderr


@pytest.mark.slow
def test_ranks_that_are_too_few_alone_wait_for_the_new_one(tmp_path):
    done = run(tmp_path / "program.py", PROGRAM, "-np", "2", "--min-np", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[w0] rank 0 through worlds of [2, 2]" in done.stdout


@pytest.mark.slow
def test_a_program_that_fails_on_all_ranks_fails_with_its_traceback(tmp_path):
    text = "import lockstitch.hvd as hvd\nhvd.init()\nhvd.barrier()\nraise ValueError('the bug')\n"
    done = run(tmp_path / "program.py", text, "-np", "2", "--min-np", "1")
    assert done.returncode == 1
    assert "ValueError: the bug" in done.stderr
    assert "nobody has the state" in done.stderr


@pytest.mark.slow
def test_hosts_come_and_go_by_a_script_and_are_reached_by_a_remote_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTITCH_ADDRESS", "127.0.0.1")
    (tmp_path / "hosts").write_text("127.0.0.2:1\n")
    (tmp_path / "more").write_text("127.0.0.2:1\n127.0.0.3:1\n")
    shell = tmp_path / "shell.sh"
    shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    shell.chmod(0o700)
    text = PROGRAM.replace("state.step == 2:", "False:").replace(
        "        state.commit()",
        f"""        if hvd.size() == 1 and os.path.exists({str(tmp_path / "more")!r}):
            os.rename({str(tmp_path / "more")!r}, {str(tmp_path / "hosts")!r})  # never half written
        state.commit()""",
    )
    done = run(
        tmp_path / "program.py", text, "-np", "1", "--min-np", "1", "--max-np", "2",
        "--host-discovery-script", f"cat {tmp_path / 'hosts'}", "--remote-shell", str(shell),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"rank 0 through worlds of \[1, 2\]", done.stdout)
    assert "rank 1 through worlds of [2]" in done.stdout


@pytest.mark.slow
def test_ranks_on_hosts_that_stay_stand_and_fall_together(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTITCH_ADDRESS", "127.0.0.1")
    shell = tmp_path / "shell.sh"
    shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    shell.chmod(0o700)
    text = (
        "import sys, torch, lockstitch.hvd as hvd\n"
        "hvd.init()\n"
        "total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()\n"
        "place = hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.cross_size()\n"
        "sys.stdout.write(f'{place} {total}\\n')\n"
    )
    hosts = ("-H", "localhost:2,127.0.0.2:1", "--remote-shell", str(shell))
    done = run(tmp_path / "program.py", text, "-np", "3", *hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[w0] (0, 0, 0, 2) 3.0",
        "[w1] (1, 1, 0, 1) 3.0",
        "[w2] (2, 0, 1, 2) 3.0",
    ]


def test_a_host_that_cannot_be_reached_is_named(tmp_path):
    shell = tmp_path / "shell.sh"
    shell.write_text("#!/bin/sh\necho 'no route' >&2\nexit 255\n")
    shell.chmod(0o700)
    hosts = ("-H", "far.invalid:1", "--remote-shell", str(shell))
    done = run(tmp_path / "program.py", "", "-np", "1", *hosts)
    assert done.returncode == 255
    said = " ".join(done.stderr.split())
    assert "its agent could not be started: exit code 255 on host far.invalid" in said
    assert said.count("no route") == 2  # at once, and in the end
    assert "try `ssh -o BatchMode=yes far.invalid true`" in said


@pytest.mark.slow
def test_workers_that_are_lost_with_their_agent_are_named_with_its_host(tmp_path):
    shell = tmp_path / "shell.sh"
    shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    shell.chmod(0o700)
    text = (
        "import os, signal\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "signal.pause()\n"
    )
    hosts = ("-H", "127.0.0.2:2,127.0.0.3:1", "--remote-shell", str(shell))
    done = run(tmp_path / "program.py", text, "-np", "3", *hosts)
    assert done.returncode == 1
    lost = "its agent has ended: killed by SIGKILL on host 127.0.0.2"
    assert f"worker 0 failed first: {lost}" in done.stderr
    assert f"worker 1 failed too: {lost}" in done.stderr
    assert "127.0.0.3" not in done.stderr
