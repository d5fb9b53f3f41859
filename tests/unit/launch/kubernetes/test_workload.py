"""What is asked for is checked before anything is written, in the words of the options."""

from __future__ import annotations

import pytest

from lockstitch.launch.kubernetes.workload import BadOptionError, Kind, Workload

IMAGES = [
    "train",
    "train:1.0",
    "registry.example.org/team/train",
    "registry.example.org:5000/team/my_train:1.0-rc_2",
    "train@sha256:" + "0f" * 32,
]


def workload(kind: Kind = Kind.JOB, name: str = "digits", workers: int = 4, **more) -> Workload:
    return Workload(kind, name, workers, **{"image": "train:1", **more})


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_named_as_registries_do(image: str) -> None:
    assert workload(image=image).image == image


@pytest.mark.parametrize(
    ("option", "given", "reason"),
    [
        ("--workers", {"workers": 0}, "0 is not in the range"),
        ("--workers", {"workers": 100_001}, "100001 is not in the range 1<=x<=100000"),
        ("--gpus", {"gpus": -1}, "-1 is not in the range"),
        ("--name", {"name": "My_Job"}, "'My_Job' cannot be in the DNS names of 4 pods of a job"),
        ("--name", {"name": ""}, "begins with a letter"),
        ("--name", {"name": "4digits"}, "begins with a letter"),
        ("--name", {"name": "digits-"}, "does not end with -"),
        ("--name", {"name": "digits.v1"}, "cannot be in the DNS names"),
        ("--name", {"name": "digits\n"}, "cannot be in the DNS names"),
        ("--namespace", {"namespace": "Team"}, "'Team' is no namespace"),
        ("--namespace", {"namespace": "a" * 64}, "at most 63"),
        ("--secret-name", {"secret_name": "my secret"}, "cannot be the name of a Secret"),
        ("--secret-name", {"secret_name": "a." * 127}, "cannot be the name of a Secret"),
        ("--image", {"image": ""}, "'' names no image"),
        ("--image", {"image": "my train:1"}, "names no image"),
        ("--image", {"image": "train:1 --privileged"}, "names no image"),
        ("--cpu", {"cpu": "4Gi"}, "no number of cores"),
        ("--memory", {"memory": "8"}, "Do you mean 8Gi"),
    ],
)
def test_what_cannot_be_is_refused_under_the_name_of_its_option(
    option: str, given: dict[str, object], reason: str
) -> None:
    with pytest.raises(BadOptionError, match=reason) as refused:
        workload(**given)
    assert refused.value.option == option


@pytest.mark.parametrize(
    ("kind", "workers", "room"),
    [
        (Kind.JOB, 4, 61),  # -3
        (Kind.JOB, 101, 59),  # -100
        (Kind.JOBSET, 4, 46),  # -worker-0-3-xxxxx
        (Kind.TRAINJOB, 11, 47),  # -node-0-10-xxxxx
        (Kind.ELASTIC, 1000, 55),  # -founder
    ],
)
def test_names_leave_room_for_what_names_the_pods(kind: Kind, workers: int, room: int) -> None:
    assert workload(kind, "a" * room, workers).name == "a" * room
    with pytest.raises(BadOptionError, match=f"1 to {room} of the characters") as refused:
        workload(kind, "a" * (room + 1), workers)
    assert refused.value.option == "--name"


def test_secret_is_named_after_the_job_unless_it_has_a_name() -> None:
    assert workload().secret == "digits-secret"
    assert workload(secret_name="shared.of-team").secret == "shared.of-team"


@pytest.mark.parametrize(("cpu", "threads"), [("", None), ("500m", 1), ("2", 2), ("3.5", 3)])
def test_workers_compute_on_whole_cores(cpu: str, threads: int | None) -> None:
    assert workload(cpu=cpu).threads == threads
