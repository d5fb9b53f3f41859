"""Ranks on a cluster of Ray that stay: two nodes in one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engines.programs import ROOT, run

pytest.importorskip("ray", reason="needs the extra engines")
pytestmark = pytest.mark.slow

HEAD = """
import os, sys, time
import ray, torch
from ray.cluster_utils import Cluster
import lockstitch.hvd as hvd
from lockstitch.ray import ElasticRayExecutor, RayExecutor, log

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
other = cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, log_to_driver=False)
"""

FIXED = (
    HEAD
    + '''
def train(batch, targets):
    """One step of a data-parallel training; each rank takes its part of the batch."""
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    mine = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
    (model(batch[mine]) - targets[mine]).square().mean().backward()
    optimizer.step()
    log(("loss of", hvd.rank()))
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()

batch, targets = torch.randn(8, 3), torch.randn(8, 1)
torch.manual_seed(0)
alone = torch.nn.Linear(3, 1)
(alone(batch) - targets).square().mean().backward()
torch.optim.SGD(alone.parameters(), lr=0.1).step()
alone = torch.nn.utils.parameters_to_vector(alone.parameters()).detach()

heard = []
executor = RayExecutor(num_hosts=2, num_workers_per_host=2)
executor.start(dict, executable_kwargs={"kept": 5}, extra_env_vars={"OF_MINE": 7})
for weights in executor.run(train, args=[batch, targets], callbacks=[heard.append]):
    torch.testing.assert_close(weights, alone)
assert heard == [("loss of", 0)], heard

def places():
    numbers = hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
    return (*numbers, ray.get_runtime_context().get_node_id(), os.environ["OF_MINE"])

found = ray.get(executor.run_remote(places))
assert [each[:5] for each in found] == [
    (0, 0, 2, 0, 2), (1, 1, 2, 0, 2), (2, 0, 2, 1, 2), (3, 1, 2, 1, 2)
], found
assert found[0][5] == found[1][5] != found[2][5] == found[3][5]
assert {each[6] for each in found} == {"7"}
assert executor.execute(lambda it: it["kept"]) == [5] * 4
told = ray.get([worker.env_vars.remote() for worker in executor.workers])
assert [each["HOROVOD_RANK"] for each in told] == ["0", "1", "2", "3"]
assert ray.get(executor.workers[2].execute.remote(lambda it: (it["kept"], hvd.rank()))) == (5, 2)
assert executor.execute_single(lambda it: (it["kept"], os.environ["HOROVOD_RANK"])) == (5, "0")

# Pages of Ray's memory, which the ranks of a node share: read, and never written.
page = ray.put(torch.ones(1 << 18).numpy())

def of_pages(references):
    tensor = torch.from_numpy(ray.get(references[0]))
    try:
        hvd.allreduce_(tensor, op=hvd.Sum)
    except ValueError as error:
        refusal = str(error)
    return "in an object of Ray's" in refusal, hvd.allreduce(tensor, op=hvd.Sum)[:2].tolist()

import warnings
warnings.simplefilter("ignore")
assert executor.run(of_pages, args=[[page]]) == [(True, [4.0, 4.0])] * 4
assert (ray.get(page) == 1).all()
print("values are right")

def fail():
    if hvd.rank() == 2:
        raise ValueError("the bug")
    return hvd.allreduce(torch.ones(1))

begun = time.monotonic()
try:
    executor.run(fail)
except ValueError as error:
    assert "the bug" in str(error)
    assert "raised on rank 2" in error.__notes__[0], error.__notes__
    print("one rank's error came after", round(time.monotonic() - begun, 3))

def meet():
    hvd.init()
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

assert executor.run(meet) == [4.0] * 4
print("they have met again")

def leave():
    if hvd.rank() == 1:
        sys.exit(3)

try:
    executor.run(leave)
except RuntimeError as error:
    assert "sys.exit(3)" in str(error)
    print("who exits has failed")

def die():
    hvd.init()
    hvd.allreduce(torch.ones(1), name="before")
    if hvd.rank() == 3:
        os.kill(os.getpid(), 9)
    begun = time.monotonic()
    try:
        hvd.allreduce(torch.ones(1), name="after")
    except hvd.HorovodInternalError:
        return time.monotonic() - begun

references = executor.run_remote(die)
print("killed rank heard after", [round(each, 3) for each in ray.get(references[:3])])
try:
    executor.run(meet)
except ConnectionError as error:
    assert "start another" in str(error)
    print("an executor without all of its ranks says so")
executor.shutdown()
try:
    executor.run(meet)
except RuntimeError as error:
    assert "was shut down" in str(error)
    print("after the end it says so")

import threading
lock = threading.Lock()
with RayExecutor(num_workers=4) as again:
    try:
        again.run(lambda: lock)
    except RuntimeError as error:
        assert "cannot be sent to workers" in str(error)
        print("what cannot be pickled is refused")
    assert again.run(meet) == [4.0] * 4
begun = time.monotonic()
for executor in (RayExecutor(num_workers=5), RayExecutor(num_hosts=3), RayExecutor(min_workers=5)):
    try:
        executor.start()
    except TimeoutError as error:
        assert "2 CPU" in str(error)
assert time.monotonic() - begun < 45
print("what there is no room for is refused")
ray.shutdown()
cluster.shutdown()
'''
)


def test_ranks_that_stay(tmp_path):
    out = run(tmp_path, FIXED)
    for line in (
        "values are right",
        "they have met again",
        "who exits has failed",
        "an executor without all of its ranks says so",
        "after the end it says so",
        "what cannot be pickled is refused",
        "what there is no room for is refused",
    ):
        assert line in out


ELASTIC = (
    HEAD
    + """
def train(hosts_file):
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0, phase=0, full=0)
    worlds = [(hvd.size(), time.time())]
    state.register_reset_callbacks([lambda: worlds.append((hvd.size(), time.time()))])

    @hvd.elastic.run
    def loop(state):
        while True:
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            state.step += 1
            state.full = (state.full + 1) * (hvd.size() == 4)
            if state.full == 20:  # all are there: say so, and wait for what is done to them
                state.full, state.phase = 21, state.phase + 1
                log((state.phase, hvd.rank(), os.getpid(), time.time()), chief_only=False)
            if state.phase == 3:
                break
            state.commit()
            time.sleep(0.01)
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        same = hvd.allgather(weights[None])
        assert all(torch.equal(each, same[0]) for each in same)
        return hvd.rank(), worlds

    return loop(state)

import queue, threading

heard, results, done = queue.Queue(), [], {}
settings = RayExecutor.create_settings(timeout_s=60)
with RayExecutor(settings, min_workers=2, max_workers=4) as executor:
    thread = threading.Thread(
        target=lambda: results.extend(executor.run(train, args=[None], callbacks=[heard.put]))
    )
    thread.start()
    while thread.is_alive():
        try:
            phase, rank, pid, when = heard.get(timeout=0.1)
        except queue.Empty:
            continue
        if phase == 1 and rank == 2 and "killed" not in done:
            done["killed"] = time.time()
            os.kill(pid, 9)
        if phase == 2 and "removed" not in done:
            done["removed"] = time.time()
            cluster.remove_node(other, allow_graceful=False)
            cluster.add_node(num_cpus=2)
assert [rank for rank, _ in results] == [0, 1, 2, 3], results
worlds = max((worlds for _, worlds in results), key=len)
sizes = [size for size, _ in worlds]
assert sizes[:3] == [4, 3, 4] and sizes[-1] == 4 and min(sizes) >= 2, sizes
print("sizes of worlds", sizes)
print("after the kill", [round(when - done["killed"], 2) for _, when in worlds])
print("after the node", [round(when - done["removed"], 2) for _, when in worlds])

def bug():
    hvd.init()
    raise ValueError("the bug")

with RayExecutor(min_workers=2, max_workers=2) as executor:
    try:
        executor.run(bug)
    except hvd.HorovodInternalError as error:
        assert "the bug" in str(error) and isinstance(error.__cause__, ValueError), error
        print("a bug on all ranks ends the job")
older = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2))
older.start()

def places():
    hvd.init()
    return hvd.rank(), hvd.size()

assert older.run(places) == [(0, 2), (1, 2)]
older.shutdown()
print("the older form does the same")
ray.shutdown()
cluster.shutdown()
"""
)


def test_ranks_that_come_and_go(tmp_path):
    out = run(tmp_path, ELASTIC)
    assert "a bug on all ranks ends the job" in out
    assert "the older form does the same" in out


PAGE = Path(ROOT / "docs" / "how-to" / "run-on-ray.md").read_text()
BLOCKS = re.findall(r"^```\{code-block\} python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_programs_of_the_page_run_as_they_stand(tmp_path, number):
    block = BLOCKS[number]
    begin = (
        "import ray\nray.init('local', num_cpus=4, include_dashboard=False, log_to_driver=False)\n"
    )
    out = run(tmp_path, begin + block)
    for printed in re.findall(
        r"^prints `([^`]*)`", PAGE.split(block)[1].split("```{")[0], re.MULTILINE
    ):
        assert printed in out
