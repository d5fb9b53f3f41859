"""The objects of each kind of job fit together."""

from __future__ import annotations

from typing import Any

import pytest

from lockstitch.launch.kubernetes.kinds import objects_of
from lockstitch.launch.kubernetes.workload import Kind, Workload


def objects(kind: Kind, **more: Any) -> dict[str, dict[str, Any]]:
    """The objects of a job of four workers, by their kinds."""
    workload = Workload(kind, "digits", 4, "train:1", ("python", "train.py"), **more)
    return {each["kind"]: each for each in objects_of(workload)}


def told(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


@pytest.mark.parametrize("kind", list(Kind))
def test_every_object_is_in_the_namespace_that_was_named(kind: Kind) -> None:
    assert all("namespace" not in each["metadata"] for each in objects(kind).values())
    there = objects(kind, namespace="team")
    assert {each["metadata"]["namespace"] for each in there.values()} == {"team"}


def test_job_has_a_pod_for_each_rank_and_the_service_names_them() -> None:
    there = objects(Kind.JOB)
    job, service = there["Job"]["spec"], there["Service"]
    pod = job["template"]
    assert job["completions"] == job["parallelism"] == 4
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    variables = told(pod["spec"]["containers"][0])
    job_name, _, subdomain = variables["MASTER_ADDR"].rpartition("-0.")
    assert (job_name, subdomain) == (there["Job"]["metadata"]["name"], "digits")


def test_jobset_starts_all_pods_anew_and_brings_its_own_service() -> None:
    there = objects(Kind.JOBSET)
    assert list(there) == ["JobSet"]
    spec = there["JobSet"]["spec"]
    (replicated,) = spec["replicatedJobs"]
    assert spec["failurePolicy"]["maxRestarts"] > 0
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert "subdomain" not in pod
    assert told(pod["containers"][0])["MASTER_ADDR"] == "digits-worker-0-0.digits"


def test_trainjob_leaves_the_pods_to_its_runtime_and_gets_the_secret_by_reference() -> None:
    there = objects(Kind.TRAINJOB, cpu="2")
    spec = there["TrainJob"]["spec"]
    trainer = spec["trainer"]
    assert spec["runtimeRef"] == {"name": "torch-distributed"}
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (4, 1)
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": "2"}
    variables = told(trainer)
    assert variables["MASTER_ADDR"] == "digits-node-0-0.digits"
    reference = {"name": "digits-secret", "key": "secret"}
    assert variables["LOCKSTITCH_SECRET"] == {"secretKeyRef": reference}
    # Those are Kubeflow's own, which it refuses to be told.
    assert not any(name.startswith("PET_") for name in variables)


def test_elastic_workers_are_invited_to_where_the_founder_listens() -> None:
    there = objects(Kind.ELASTIC)
    founder = there["Job"]["spec"]["template"]
    worker = there["Deployment"]["spec"]["template"]
    service = there["Service"]
    (founding,) = founder["spec"]["containers"]
    (joining,) = worker["spec"]["containers"]
    place = f"{founder['spec']['hostname']}.{founder['spec']['subdomain']}"
    (port,) = [each["containerPort"] for each in founding["ports"]]
    assert told(joining)["LOCKSTITCH_INVITATION"] == f"lockstitch://{place}:{port}"
    assert told(founding)["LOCKSTITCH_PORT_RANGE"] == str(port)
    assert told(founding)["MASTER_ADDR"] == place
    assert "RANK" not in told(joining)
    assert founder["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= founder["metadata"]["labels"].items()
    selector = there["Deployment"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= worker["metadata"]["labels"].items()
    assert not selector.items() <= founder["metadata"]["labels"].items()
    assert there["Deployment"]["spec"]["replicas"] == 4
