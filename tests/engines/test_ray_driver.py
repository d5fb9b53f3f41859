"""What becomes of workers on Ray when the program that has started them is killed."""

from __future__ import annotations

import pytest

from tests.engines.programs import run

pytest.importorskip("ray", reason="needs the extra engines")
pytestmark = pytest.mark.slow

DRIVER = """
import os, sys, time
import ray
import lockstitch.ray
from lockstitch import rpc
from lockstitch.ray import RayExecutor

ray.init(address=sys.argv[1], log_to_driver=False)

def stay():
    import lockstitch.hvd as hvd
    hvd.init()
    if hvd.rank() == 0:
        print("unseen")
    return os.getpid()

executor = RayExecutor(num_workers=2)
executor.start()
pids = executor.run(stay)
group = lockstitch.ray.workers(1)
group.__enter__()
pids.append(rpc.rpc_sync("worker0", os.getpid))
print("pids", *pids, flush=True)
executor.run(time.sleep, args=[600])
"""

KEEPER = (
    f"DRIVER = {DRIVER!r}\n"
    + """
import os, subprocess, sys, time
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.address], stdout=subprocess.PIPE,
                          text=True)
for line in driver.stdout:
    if line.startswith("pids"):
        break
pids = [int(word) for word in line.split()[1:]]
assert len(pids) == 3 and all(os.path.exists(f"/proc/{pid}") for pid in pids)
driver.kill()
driver.wait()
begun = time.monotonic()
while any(os.path.exists(f"/proc/{pid}") for pid in pids):
    assert time.monotonic() - begun < 60, [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    time.sleep(0.1)
print("no worker is left")
cluster.shutdown()
"""
)


def test_workers_end_with_the_program_that_has_started_them(tmp_path):
    assert "no worker is left" in run(tmp_path, KEEPER)
