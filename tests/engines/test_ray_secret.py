"""A job's secret on Ray: in no file, log, environment or command line, nor in what Ray tells of its
actors and tasks."""

from __future__ import annotations

import pytest

from tests.engines.programs import run

pytest.importorskip("ray", reason="needs the extra engines")
pytestmark = pytest.mark.slow

PROGRAM = '''
import os
import pathlib

import ray
from ray.util import state

import lockstitch.hvd as hvd
import lockstitch.ray
from lockstitch import rpc
from lockstitch.ray import RayExecutor
from lockstitch.trust import Secret

made = []
make = Secret.make.__func__


def remembered(cls):
    made.append(make(cls))
    return made[-1]


Secret.make = classmethod(remembered)
ray.init("local", num_cpus=4, include_dashboard=True, log_to_driver=True)
session = pathlib.Path(ray._private.worker._global_node.get_session_dir_path())


def words():
    return [form for each in made for form in (each.text(), each.text().upper())]


def search():
    """Where any of the secrets is found."""
    needles = [word.encode() for word in words()]
    needles += [bytes.fromhex(word) for word in words()]
    files = [path for path in session.rglob("*") if path.is_file()]
    files += [*pathlib.Path("/proc").glob("[0-9]*/environ")]
    files += [*pathlib.Path("/proc").glob("[0-9]*/cmdline")]
    found, read = [], 0
    for path in files:
        try:
            content = path.read_bytes()
        except OSError:  # it has gone
            continue
        read += 1
        if any(needle in content for needle in needles):
            found.append(str(path))
    where = {"address": ray.get_runtime_context().gcs_address, "detail": True}
    told = [
        state.list_actors(**where), state.list_tasks(**where, limit=1000),
        state.list_workers(**where), state.list_jobs(**where),
        state.list_runtime_envs(**where), state.list_placement_groups(**where),
    ]
    assert told[0] and told[1] and read > 50, (len(told[0]), len(told[1]), read)
    found += [f"state {number}" for number, each in enumerate(told)
              if any(word in repr(each) for word in words())]
    return found


def train():
    hvd.init()
    hvd.barrier()
    return dict(os.environ)


with RayExecutor(num_workers=2) as executor:
    environments = executor.run(train)
    assert search() == []
assert environments[0]["LOCKSTITCH_SECRET_FILE"].startswith("/proc/self/fd/")


def grow():
    hvd.init()
    hvd.barrier()
    return dict(os.environ)


with RayExecutor(min_workers=2, max_workers=2) as executor:
    environments += executor.run(grow)
assert search() == []
with lockstitch.ray.workers(2) as group:
    environments += [rpc.rpc_sync(name, dict, args=(os.environ,)) for name in group]
    environments += [rpc.rpc_sync(name, train.__globals__["os"].environ.copy) for name in group]
    assert search() == []
assert len(made) == 3
assert not any(word in repr(environments) for word in words())
canary = session / "logs" / "canary"
canary.write_text(made[0].text())
assert search() == [str(canary)]
canary.unlink()
print("nothing was found of", len(made), "secrets")
'''


def test_the_secret_is_found_nowhere(tmp_path):
    assert "nothing was found of 3 secrets" in run(tmp_path, PROGRAM)
