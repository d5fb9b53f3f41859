from __future__ import annotations

import stat

import pytest

from lockstitch.ray.settings import WorkerResources, write_identity


def test_a_worker_takes_what_was_asked_for():
    assert WorkerResources(2).bundle(3) == {"CPU": 6}
    assert WorkerResources.of_hvd(1, True, None, "gpus_per_worker").bundle() == {"CPU": 1, "GPU": 1}
    assert WorkerResources.of_hvd(1, False, None, "gpus_per_worker").bundle() == {"CPU": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, False, 2), "gpus_per_worker=2 asks for GPUs, but use_gpu is False"),
        ((1, True, 0.5), "must be at least 1 where use_gpu is True"),
        ((0, False, None), "needs some CPUs or GPUs"),
        ((-1, False, None), "needs some CPUs or GPUs"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        WorkerResources.of_hvd(*arguments, "gpus_per_worker")


def test_as_many_workers_fit_as_the_scarcest_resource_allows():
    resources = WorkerResources(2, 1)
    assert resources.slots_of({"CPU": 9.0, "GPU": 3.0}) == 3
    assert resources.slots_of({"CPU": 9.0, "GPU": 8.0}) == 4
    assert resources.slots_of({"CPU": 9.0}) == 0


def test_a_key_is_written_for_its_user_alone_and_never_over_another(tmp_path):
    path = tmp_path / "key"
    write_identity("secret words", str(path))
    assert path.read_text() == "secret words"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_identity("others", str(path))
    assert path.read_text() == "secret words"
    write_identity(None, None)
