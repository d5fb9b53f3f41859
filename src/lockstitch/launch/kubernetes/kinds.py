"""The objects of each kind of job, as plain dictionaries.

    job        a headless Service and an Indexed Job: needs nothing but Kubernetes
    jobset     a JobSet, which brings its Service itself and starts all pods anew when one fails
    trainjob   a TrainJob of Kubeflow Trainer, for a runtime with the torch policy
    elastic    a Job with the founder of an rpc group, and a Deployment of workers that join it by
               invitation

Where the number of workers is fixed they stand and fall together: a pod that fails is not started
again by itself, since the others have lost its rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstitch.launch.kubernetes import pods
from lockstitch.launch.kubernetes.workload import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lockstitch.launch.kubernetes.workload import Workload

CALLS_PORT: Final = 29501
"""Where each worker of an elastic job listens, so that an invitation can be written beforehand."""

INVITATION_VARIABLE: Final = "LOCKSTITCH_INVITATION"

_RESTARTS: Final = 3
_RUNTIME: Final = "torch-distributed"


def objects_of(workload: Workload) -> list[dict[str, Any]]:
    """Returns the objects that make up the job, in the order in which they are to be created."""
    return _KINDS[workload.kind](workload)


def _job(workload: Workload) -> list[dict[str, Any]]:
    founder = f"{workload.name}-0.{workload.name}"
    return [
        _service(workload, pods.MEETING_PORT),
        _object(workload, "batch/v1", "Job", workload.name, _indexed_job(workload, founder)),
    ]


def _jobset(workload: Workload) -> list[dict[str, Any]]:
    founder = f"{workload.name}-worker-0-0.{workload.name}"
    replicated = {
        "name": "worker",
        "replicas": 1,
        "template": {"spec": _indexed_job(workload, founder, is_in_set=True)},
    }
    spec = {"failurePolicy": {"maxRestarts": _RESTARTS}, "replicatedJobs": [replicated]}
    return [_object(workload, "jobset.x-k8s.io/v1alpha2", "JobSet", workload.name, spec)]


def _trainjob(workload: Workload) -> list[dict[str, Any]]:
    # Its pods are the runtime's: only what a TrainJob may say of them is said. One process in each
    # has its place in our variables, or gets that of torchrun where this is the command.
    trainer: dict[str, Any] = {
        "image": workload.image,
        "numNodes": workload.workers,
        "numProcPerNode": 1,
        "env": [
            *pods.variables(workload, f"{workload.name}-node-0-0.{workload.name}"),
            pods.secret_variable(workload),
        ],
    }
    if workload.command:
        trainer["command"] = list(workload.command)
    if given := pods.resources(workload):
        trainer["resourcesPerNode"] = given
    spec = {"runtimeRef": {"name": _RUNTIME}, "trainer": trainer}
    version = "trainer.kubeflow.org/v1alpha1"
    return [_object(workload, version, "TrainJob", workload.name, spec)]


def _elastic(workload: Workload) -> list[dict[str, Any]]:
    founder = f"{workload.name}-founder"
    place = f"{founder}.{workload.name}"
    founding = [
        {"name": "RANK", "value": "0"},
        {"name": "WORLD_SIZE", "value": "1"},  # of those that meet in its store
        {"name": "MASTER_ADDR", "value": place},
        {"name": "MASTER_PORT", "value": str(pods.MEETING_PORT)},
    ]
    joining = [{"name": INVITATION_VARIABLE, "value": f"lockstitch://{place}:{CALLS_PORT}"}]
    job = {
        "backoffLimit": 0,
        "template": _elastic_pod(
            workload,
            founding,
            "founder",
            restartPolicy="Never",
            hostname=founder,
            subdomain=workload.name,
        ),
    }
    deployment = {
        "replicas": workload.workers,
        "selector": {"matchLabels": _labels(workload, "worker")},
        "template": _elastic_pod(workload, joining, "worker"),
    }
    return [
        _service(workload, CALLS_PORT),
        _object(workload, "batch/v1", "Job", founder, job),
        _object(workload, "apps/v1", "Deployment", f"{workload.name}-workers", deployment),
    ]


_KINDS: Final[Mapping[Kind, Callable[[Workload], list[dict[str, Any]]]]] = {
    Kind.JOB: _job,
    Kind.JOBSET: _jobset,
    Kind.TRAINJOB: _trainjob,
    Kind.ELASTIC: _elastic,
}


def _indexed_job(workload: Workload, founder: str, *, is_in_set: bool = False) -> dict[str, Any]:
    """Returns the specification of a Job with a pod for each rank. `is_in_set`: a JobSet gives its
    pods the subdomain of its own Service."""
    subdomain = {} if is_in_set else {"subdomain": workload.name}
    pod = pods.pod_spec(
        workload,
        pods.variables(workload, founder),
        port=("meeting", pods.MEETING_PORT),
        readiness=pods.meeting_probe(),
        restartPolicy="Never",
        **subdomain,
    )
    return {
        "completions": workload.workers,
        "parallelism": workload.workers,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"metadata": {"labels": _labels(workload)}, "spec": pod},
    }


def _elastic_pod(
    workload: Workload, place: list[dict[str, Any]], role: str, **more: Any
) -> dict[str, Any]:
    told = [
        *place,
        {"name": "LOCKSTITCH_PORT_RANGE", "value": str(CALLS_PORT)},
        *pods.common_variables(workload),
    ]
    spec = pods.pod_spec(
        workload,
        told,
        port=("calls", CALLS_PORT),
        readiness=pods.port_probe(CALLS_PORT),
        **more,
    )
    return {"metadata": {"labels": _labels(workload, role)}, "spec": spec}


def _service(workload: Workload, port: int) -> dict[str, Any]:
    """Returns the headless Service that gives pods their DNS names, as soon as they have an
    address: they meet before they are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(workload),
        "ports": [{"name": "workers", "port": port}],
    }
    return _object(workload, "v1", "Service", workload.name, spec)


def _object(
    workload: Workload, version: str, kind: str, name: str, spec: dict[str, Any]
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if workload.namespace:
        metadata["namespace"] = workload.namespace
    metadata["labels"] = _labels(workload)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(workload: Workload, role: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "lockstitch", "app.kubernetes.io/instance": workload.name}
    return {**labels, "app.kubernetes.io/component": role} if role else labels
