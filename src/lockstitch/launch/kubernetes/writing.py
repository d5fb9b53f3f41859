"""A manifest as text: what to do with it, as comments, and the objects, as YAML."""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import TYPE_CHECKING

from lockstitch.launch.kubernetes.kinds import objects_of
from lockstitch.launch.kubernetes.workload import SECRET_KEY, Kind

if TYPE_CHECKING:
    from lockstitch.launch.kubernetes.workload import Workload

_NEEDS = {
    Kind.JOBSET: "It needs the controller of JobSet (jobset.sigs.k8s.io) in the cluster.",
    Kind.TRAINJOB: "It needs Kubeflow Trainer (version 2) and its runtime torch-distributed.",
    Kind.ELASTIC: "The founder's end is the job's: delete the Deployment of the others then.",
}


def secret_command(workload: Workload) -> str:
    """Returns the command line that makes the job's secret and gives it to the cluster, without
    leaving it in a file or among the arguments of a process."""
    words = ["kubectl", "create", "secret", "generic", workload.secret]
    words += [f"--from-file={SECRET_KEY}=/dev/stdin"]
    if workload.namespace:
        words += ["--namespace", workload.namespace]
    return f"lockstitch secret | {shlex.join(words)}"


def manifest(workload: Workload) -> str:
    """Returns the whole manifest."""
    yaml = import_module("yaml")  # a fifth of the time that the command takes to start
    comments = [
        "Written by `lockstitch manifest k8s`. The job's secret is not in here: make one first, by",
        "",
        f"  {secret_command(workload)}",
    ]
    if workload.kind in _NEEDS:
        comments += ["", _NEEDS[workload.kind]]
    header = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    # In ASCII: as they are, some characters that end lines would be read as spaces.
    body: str = yaml.safe_dump_all(objects_of(workload), sort_keys=False, explicit_start=True)
    return header + body
