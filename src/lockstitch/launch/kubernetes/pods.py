"""The pods that workers run in: what they are told, what they may use, and how they end.

A worker is told its place in the variables that PyTorch's launchers use, so that `init_rpc`,
`hvd.init` and torch.distributed all read the same. Its rank is the index that the Job gives its
pod; the founder is found by the name that the headless Service gives the pod with index 0.

The job's secret comes as a file that root owns and only the group of the pod can read (`fsGroup`;
`trust.secret` says why that will do). Where a file cannot be had it is a variable that Kubernetes
fills in. The manifest itself never holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstitch.launch.kubernetes.workload import SECRET_KEY
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from lockstitch.launch.kubernetes.workload import Workload

MEETING_PORT: Final = 29500
"""Where rank 0 hosts the store in which the workers meet: each pod has ports of its own."""

GRACE_SECONDS: Final = 30
"""How long a pod may take to end after SIGTERM."""

_SECRET_FOLDER: Final = "/var/run/secrets/lockstitch"
_POD_GROUP: Final = 65532
_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_MEETING_SECONDS: Final = 600
_ASK_MEETING: Final = (
    "import os, socket; "
    "place = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']); "
    "socket.create_connection(place, 5).close()"
)


def variables(workload: Workload, founder: str) -> list[dict[str, Any]]:
    """Returns what each pod of an Indexed Job is told of its place among the workers, which meet
    at the pod that is called `founder`."""
    return [
        _field("RANK", _INDEX),
        _value("WORLD_SIZE", workload.workers),
        _value("LOCAL_RANK", 0),
        _value("LOCAL_WORLD_SIZE", 1),
        _value("MASTER_ADDR", founder),
        _value("MASTER_PORT", MEETING_PORT),
        *common_variables(workload),
    ]


def common_variables(workload: Workload) -> list[dict[str, Any]]:
    """Returns what any pod is told, whatever its place."""
    told = [
        _field("LOCKSTITCH_ADDRESS", "status.podIP"),
        # Pods start at their own pace: a node may have to fetch the image first.
        _value("LOCKSTITCH_JOIN_TIMEOUT", _MEETING_SECONDS),
        _value("HOROVOD_GLOO_TIMEOUT_SECONDS", _MEETING_SECONDS),
        _value("PYTHONUNBUFFERED", 1),
    ]
    if workload.threads is not None:  # torch would count the cores of the whole node
        told.append(_value("OMP_NUM_THREADS", workload.threads))
    return told


def secret_variable(workload: Workload) -> dict[str, Any]:
    """Returns the variable that Kubernetes fills with the secret's text."""
    reference = {"name": workload.secret, "key": SECRET_KEY}
    return {"name": VARIABLE, "valueFrom": {"secretKeyRef": reference}}


def resources(workload: Workload) -> dict[str, Any]:
    """Returns what each pod is given; as much as it may use, for workers wait for the slowest."""
    amounts: dict[str, Any] = {}
    if workload.cpu:
        amounts["cpu"] = workload.cpu
    if workload.memory:
        amounts["memory"] = workload.memory
    if workload.gpus:
        amounts["nvidia.com/gpu"] = workload.gpus
    return {"requests": dict(amounts), "limits": amounts} if amounts else {}


def pod_spec(
    workload: Workload,
    told: list[dict[str, Any]],
    *,
    port: tuple[str, int],
    readiness: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Returns the specification of a pod whose worker is told `told`, with `more` fields.

    There is no liveness probe: a worker whose process has ended is seen as it is, and from outside
    one that is stuck cannot be told from one that computes. The workers themselves can, by the
    heartbeats between them."""
    name, number = port
    container: dict[str, Any] = {"name": "worker", "image": workload.image}
    if workload.command:
        container["command"] = list(workload.command)
    container |= {
        "env": [*told, _value(FILE_VARIABLE, f"{_SECRET_FOLDER}/{SECRET_KEY}")],
        "ports": [{"name": name, "containerPort": number}],
        "readinessProbe": readiness,
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [
            {"name": "secret", "mountPath": _SECRET_FOLDER, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    if given := resources(workload):
        container["resources"] = given
    return {
        **more,
        # Else each Service of the namespace adds variables, some of which might look like ours.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {"fsGroup": _POD_GROUP},
        "containers": [container],
        "volumes": [
            {"name": "secret", "secret": {"secretName": workload.secret, "defaultMode": 0o440}},
            # Data loaders and NCCL need more of it than the 64 MB that a container has.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def meeting_probe() -> dict[str, Any]:
    """Returns a probe that asks whether this pod reaches the store in which the workers meet."""
    return _probe({"exec": {"command": ["python", "-c", _ASK_MEETING]}})


def port_probe(port: int) -> dict[str, Any]:
    """Returns a probe that asks whether the worker of this pod listens for others."""
    return _probe({"tcpSocket": {"port": port}})


def _probe(question: dict[str, Any]) -> dict[str, Any]:
    return {**question, "periodSeconds": 15, "timeoutSeconds": 10}


def _value(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "value": str(value)}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
