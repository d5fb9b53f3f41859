"""Pods of a manifest train: the commands and the environment are those that stand in it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from lockstitch.launch.kubernetes.pods import GRACE_SECONDS
from lockstitch.launch.kubernetes.workload import Kind, Workload
from lockstitch.launch.kubernetes.writing import manifest
from lockstitch.trust.secret import Secret
from tests.engines.pods import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engines.pods import Pod

pytestmark = pytest.mark.slow

SIZE = 3
STEPS = 5

REDUCING = f"""
import torch
import lockstitch.hvd as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
inputs, targets = torch.randn({SIZE} * 2, 4), torch.randn({SIZE} * 2, 1)
own = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range({STEPS}):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs[own]), targets[own]).backward()
    optimizer.step()
print("trained", hvd.cross_size(), model.weight.flatten().tolist(), flush=True)
hvd.shutdown()
"""

CALLING = f"""
import os
import torch
from lockstitch import rpc
import lockstitch.autograd as dist_autograd
from lockstitch.optim import DistributedOptimizer

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{{rank}}", rank=rank, world_size=size)
if rank == 0:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    inputs, targets = torch.randn({SIZE} * 2, 4), torch.randn({SIZE} * 2, 1)
    there = [
        rpc.remote(f"worker{{1 + index}}", torch.nn.Parameter, args=(part.detach(),))
        for index, part in enumerate((model.weight, model.bias))
    ]
    optimizer = DistributedOptimizer(torch.optim.SGD, there, lr=0.1)
    for _ in range({STEPS}):
        with dist_autograd.context() as context_id:
            weight, bias = (each.to_here() for each in there)
            outputs = torch.nn.functional.linear(inputs, weight, bias)
            loss = torch.nn.functional.mse_loss(outputs, targets)
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
    print("trained", size, there[0].to_here().flatten().tolist(), flush=True)
rpc.shutdown()
"""


def trained_alone() -> list[float]:
    """The weights that one process of plain PyTorch comes to."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    inputs, targets = torch.randn(SIZE * 2, 4), torch.randn(SIZE * 2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return model.weight.flatten().tolist()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    path = tmp_path / "secret"
    Secret.make().write(path)
    with Cluster(SIZE, path) as cluster:
        yield cluster


def written(kind: Kind, program: str) -> dict[str, Any]:
    """The objects of a job whose workers run a program, by their kinds."""
    workload = Workload(kind, "digits", SIZE, "train:1", ("python", "-c", program), cpu="1")
    return {each["kind"]: each for each in yaml.safe_load_all(manifest(workload))}


def pods_of_job(cluster: Cluster, program: str) -> list[Pod]:
    """The pods of an Indexed Job, with the names that Kubernetes gives them."""
    job = written(Kind.JOB, program)["Job"]
    spec, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    hosts = [f"{name}-{index}" for index in range(job["spec"]["completions"])]
    cluster.name_pods(
        {index: [f"{host}.{spec['subdomain']}", host] for index, host in enumerate(hosts)}
    )
    return [cluster.add(spec, index, host) for index, host in enumerate(hosts)]


def weights(log: str) -> tuple[int, list[float]]:
    (line,) = [each for each in log.splitlines() if each.startswith("trained ")]
    _, number, rest = line.split(" ", 2)
    return int(number), yaml.safe_load(rest)


@pytest.mark.parametrize("program", [REDUCING, CALLING], ids=["hvd", "rpc"])
def test_pods_of_a_job_train_as_one_process_does(cluster: Cluster, program: str) -> None:
    pods = pods_of_job(cluster, program)
    for pod in reversed(pods):  # whoever is to meet the founder comes first
        pod.start()
    ended = [pod.wait() for pod in pods]
    assert [status for status, _ in ended] == [0] * SIZE, ended
    for _, log in ended if program == REDUCING else ended[:1]:
        hosts, found = weights(log)
        assert hosts == SIZE
        assert found == pytest.approx(trained_alone(), rel=1e-5)


def test_pod_is_ready_when_it_reaches_where_the_workers_meet(cluster: Cluster) -> None:
    waiting = "import lockstitch.hvd as hvd; hvd.init(); print('in', flush=True); input()"
    pods = pods_of_job(cluster, waiting)
    question = pods[0].container["readinessProbe"]["exec"]["command"]
    assert [pod.execute(question) for pod in pods] == [1] * SIZE
    for pod in pods:
        pod.start()
    assert [pod.read_until("in")[-1] for pod in pods] == ["in"] * SIZE
    assert [pod.execute(question) for pod in pods] == [0] * SIZE


def test_pod_that_is_told_to_end_cleans_up_and_does_not_wait_to_be_killed(
    cluster: Cluster,
) -> None:
    program = """
import threading, lockstitch.hvd as hvd
hvd.init()
try:
    print("in", flush=True)
    threading.Event().wait()
finally:
    print("cleans up", flush=True)
"""
    pods = pods_of_job(cluster, program)
    for pod in pods:
        pod.start()
    assert [pod.read_until("in")[-1] for pod in pods] == ["in"] * SIZE
    os.kill(pods[2].first_process(), signal.SIGTERM)
    status, log = pods[2].wait(GRACE_SECONDS)
    assert (status, log.splitlines()[-1]) == (143, "cleans up")


SEARCHING = """
import os, threading
from lockstitch import rpc

def name():
    return rpc.get_worker_info().name

events = []
left = threading.Event()

def note(event):
    if event.kind == "left":
        events.append(event.worker.name)
        left.set()

is_founder = "RANK" in os.environ
rpc.add_membership_callback(note)
rpc.init_rpc("founder" if is_founder else os.environ["HOSTNAME"])
print("in", flush=True)
if not is_founder:
    threading.Event().wait()
for worker in ("search-workers-a", "search-workers-b"):
    rpc.wait_for_worker(worker, timeout=100)
    print(rpc.rpc_sync(worker, name), flush=True)
assert left.wait(60)
print("without", *events, flush=True)
"""


def test_elastic_workers_join_by_invitation_and_leave_when_they_are_scaled_away(
    cluster: Cluster,
) -> None:
    workload = Workload(Kind.ELASTIC, "search", SIZE - 1, "train:1", ("python", "-c", SEARCHING))
    there = {each["kind"]: each for each in yaml.safe_load_all(manifest(workload))}
    founding, joining = (there[kind]["spec"]["template"]["spec"] for kind in ("Job", "Deployment"))
    place = f"{founding['hostname']}.{founding['subdomain']}"
    cluster.name_pods({0: [place, founding["hostname"]]})
    workers = [cluster.add(joining, 1 + each, f"search-workers-{'ab'[each]}") for each in range(2)]
    founder = cluster.add(founding, 0, founding["hostname"])
    for pod in (*workers, founder):
        pod.start()
    expected = ["in", "search-workers-a", "search-workers-b"]
    assert founder.read_until(expected[-1])[-3:] == expected
    port = founder.container["readinessProbe"]["tcpSocket"]["port"]
    asked = ["python", "-c", f"import socket; socket.create_connection(('{place}', {port}), 5)"]
    assert workers[0].execute(asked) == 0
    os.kill(workers[0].first_process(), signal.SIGTERM)
    status, _ = workers[0].wait(GRACE_SECONDS)
    assert status == 143
    assert founder.wait(60) == (0, "without search-workers-a\n")
