"""The face of Horovod between real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = r"""
import sys

import torch
import lockstitch.hvd as hvd

for life in range(3):
    try:
        hvd.init(process_sets=[hvd.ProcessSet([1]), hvd.ProcessSet([0]), hvd.ProcessSet([1])])
    except ValueError as error:
        assert "entry number 2 of process_sets is a duplicate" in str(error)
    else:
        raise AssertionError("no error")
    hvd.init(process_sets=[hvd.ProcessSet([0])])
    assert (hvd.size(), hvd.local_size(), hvd.local_rank()) == (2, 2, hvd.rank())
    total = hvd.allreduce(torch.full((100_000,), 1.0 + hvd.rank()), op=hvd.Sum)
    assert total.eq(3).all()
    x = torch.ones(2, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    try:
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="odd")
    except hvd.HorovodInternalError as error:
        assert "shape" in str(error)
    else:
        raise AssertionError("no error")
    model = torch.nn.Linear(3, 3)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if "optimizer" in sys.argv:
        hvd.broadcast_optimizer_state(torch.optim.Adam(model.parameters()), root_rank=0)
    weights = hvd.allgather_object(model.weight.tolist())
    assert weights[0] == weights[1]
    assert hvd.join() in (0, 1)
    if life < 2:
        hvd.shutdown()
sys.stdout.write(f"rank {hvd.rank()} is done\n")
"""


def run(command, environment=None):
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "launcher",
    [
        ["lockstitch", "run", "-n", "2"],
        ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    ],
    ids=["lockstitch", "torchrun"],
)
def test_an_example_of_rpc_and_a_program_in_the_same_processes(launcher, tmp_path):
    script, example = tmp_path / "program.py", ROOT / "examples" / "two_tensors.py"
    script.write_text(
        f"import runpy\nrunpy.run_path({str(example)!r}, None, '__main__')\n{PROGRAM}"
    )
    output = run([sys.executable, "-m", *launcher, str(script)])
    assert output.count("all ones: True") == 2
    assert output.count("a fall of 0.9000") == 2
    assert "rank 0 is done" in output
    assert "rank 1 is done" in output


def test_a_program_in_the_environment_of_horovodrun(warm_python, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environments = [
        {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": "2",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }
        for rank in range(2)
    ]
    # Here torch's first optimizer does not import its compiler, for which others wait seconds.
    ranks = warm_python.run_all(script, tmp_path, environments, ["optimizer"])
    assert ranks == [(0, f"rank {rank} is done\n", "") for rank in range(2)]


def test_a_plain_process_needs_no_launcher():
    program = "import lockstitch.hvd as hvd; hvd.init(); print(hvd.size())"
    assert run([sys.executable, "-W", "error", "-c", program]) == "1\n"
