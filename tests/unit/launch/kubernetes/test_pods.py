"""What pods are told and given."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from lockstitch.doctor.surroundings import KNOWN
from lockstitch.hvd.environment import LauncherSettings
from lockstitch.launch.kubernetes import pods
from lockstitch.launch.kubernetes.workload import Kind, Workload

WORKLOAD = Workload(Kind.JOB, "digits", 4, "train:1", ("python", "train.py"), cpu="2", gpus=1)


def values(told: list[dict], index: int = 0) -> dict[str, str]:
    """What a pod finds in its environment, with that index."""
    fields = {pods._INDEX: str(index), "status.podIP": "10.0.0.7"}
    return {
        each["name"]: each["value"]
        if "value" in each
        else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in told
    }


def test_ranks_are_told_their_place_as_launchers_tell_it() -> None:
    told = values(pods.variables(WORKLOAD, "digits-0.digits"), 3)
    settings = LauncherSettings.read(told)
    assert (settings.rank, settings.size, settings.store) == (3, 4, "env://")
    assert told["MASTER_ADDR"] == "digits-0.digits"
    assert told["LOCKSTITCH_ADDRESS"] == "10.0.0.7"
    assert told["OMP_NUM_THREADS"] == "2"
    ours = {name for name in told if name.startswith("LOCKSTITCH_")}
    assert ours <= KNOWN


def test_nothing_is_said_of_threads_where_cores_have_no_limit() -> None:
    told = values(pods.common_variables(Workload(Kind.JOB, "digits", 4, "train:1")))
    assert "OMP_NUM_THREADS" not in told


def test_secret_is_mounted_for_the_group_of_the_pod_and_stands_nowhere() -> None:
    spec = pods.pod_spec(WORKLOAD, [], port=("meeting", 29500), readiness={})
    (container,) = spec["containers"]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    (file,) = [each["value"] for each in container["env"]]
    assert file == f"{mounted['secret']}/secret"
    assert spec["volumes"][0]["secret"] == {
        "secretName": "digits-secret",
        "defaultMode": 0o440,
    }
    assert spec["securityContext"]["fsGroup"] > 0
    assert container["command"] == ["python", "train.py"]


def test_pod_gets_as_much_as_it_may_use() -> None:
    assert pods.resources(WORKLOAD)["requests"] == pods.resources(WORKLOAD)["limits"]
    assert pods.resources(WORKLOAD)["limits"] == {"cpu": "2", "nvidia.com/gpu": 1}
    assert pods.resources(Workload(Kind.JOB, "digits", 1, "train:1")) == {}


@pytest.mark.parametrize("is_there", [True, False])
def test_readiness_is_whether_the_meeting_place_answers(is_there: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_there:
            server.close()
        _, *arguments = pods.meeting_probe()["exec"]["command"]
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, check=False
        )
    assert (done.returncode == 0) is is_there
