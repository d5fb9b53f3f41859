"""The objects of each kind of job, as plain dictionaries.

    job        a headless Service and an Indexed Job: needs nothing but Kubernetes
    jobset     a JobSet, which brings its Service itself and starts all pods anew when one fails
    trainjob   a TrainJob of Kubeflow Trainer, for a runtime with the torch policy

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


_KINDS: Final[Mapping[Kind, Callable[[Workload], list[dict[str, Any]]]]] = {
    Kind.JOB: _job,
    Kind.JOBSET: _jobset,
    Kind.TRAINJOB: _trainjob,
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


def _labels(workload: Workload) -> dict[str, str]:
    return {"app.kubernetes.io/name": "lockstitch", "app.kubernetes.io/instance": workload.name}
