"""What `lockstitch manifest k8s` writes is what Kubernetes, JobSet and Kubeflow Trainer read.

Kubernetes publishes a schema for each of its versions. JobSet and Kubeflow Trainer do not have a
validator; the models that Kubeflow generates from the types of both take in the fields that exist
and drop any other, so that whatever does not come out again is one that nobody would obey.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lockstitch.launch.kubernetes.workload import Kind, Workload
from lockstitch.launch.kubernetes.writing import manifest

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs the extra engines")
models = pytest.importorskip("kubeflow_trainer_api.models", reason="needs the extra engines")

VERSIONS = ["1.28", "1.31", "1.34"]
OF_OTHERS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
}
OF_KUBERNETES = [kind for kind in Kind if kind not in (Kind.JOBSET, Kind.TRAINJOB)]


def written(kind: Kind, **more: Any) -> list[dict[str, Any]]:
    """The objects in the manifest of a job that asks for all there is, but for `more`."""
    asked = {"cpu": "500m", "memory": "8Gi", "gpus": 2, "namespace": "team", **more}
    words = ("python", "train.py", "--note", "two words: 'yes'")
    workload = Workload(kind, "digits", 4, "registry.example.org/train:1.0", words, **asked)
    return list(yaml.safe_load_all(manifest(workload)))


def lost(given: Any, kept: Any, place: str = "") -> list[str]:
    """The places of what was given and has not been kept."""
    if isinstance(given, dict) and isinstance(kept, dict):
        found = [
            lost(value, kept[key], f"{place}.{key}") if key in kept else [f"{place}.{key}"]
            for key, value in given.items()
        ]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        found = [lost(*pair, f"{place}[{number}]") for number, pair in pairs]
    else:
        return [] if given == kept else [place]
    return [each for places in found for each in places]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", OF_KUBERNETES)
def test_objects_of_kubernetes_are_valid(kind: Kind, version: str) -> None:
    for each in [*written(kind), *written(kind, cpu="", memory="", gpus=0, namespace="")]:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("kind", [Kind.JOBSET, Kind.TRAINJOB])
def test_fields_of_other_kinds_exist_and_have_their_types(kind: Kind) -> None:
    for each in [*written(kind), *written(kind, cpu="", memory="", gpus=0, namespace="")]:
        assert lost(each, OF_OTHERS[each["kind"]].from_dict(each).to_dict()) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_of_a_jobset_are_those_of_a_valid_job(version: str) -> None:
    (jobset,) = written(Kind.JOBSET)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "digits"}}
    kubernetes_validate.validate({**job, **replicated["template"]}, version, strict=True)


def test_slips_are_found_by_either() -> None:
    _, job = written(Kind.JOB)
    job["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="periodSecond"):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)
    (trainjob,) = written(Kind.TRAINJOB)
    trainjob["spec"]["trainer"]["numNode"] = trainjob["spec"]["trainer"].pop("numNodes")
    kept = OF_OTHERS["TrainJob"].from_dict(trainjob).to_dict()
    assert lost(trainjob, kept) == [".spec.trainer.numNode"]
    (jobset,) = written(Kind.JOBSET)
    jobset["spec"]["replicatedJobs"][0]["replicas"] = "one"
    with pytest.raises(ValueError, match="replicas"):
        OF_OTHERS["JobSet"].from_dict(jobset)
