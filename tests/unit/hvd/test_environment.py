from __future__ import annotations

import pytest

from lockstitch.hvd.environment import LauncherSettings

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
RENDEZVOUS = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4567",
}


def test_a_process_that_nobody_launched_is_alone():
    settings = LauncherSettings.read({})
    assert (settings.rank, settings.size) == (0, 1)


@pytest.mark.parametrize(
    "names", [("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE")], ids=str
)
def test_both_families_of_names_are_understood(names):
    settings = LauncherSettings.read({names[0]: "2", names[1]: "4", **MEETING})
    assert (settings.rank, settings.size, settings.store) == (2, 4, "env://")


def test_horovods_names_come_first():
    both = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3", "RANK": "0", "WORLD_SIZE": "2"}
    settings = LauncherSettings.read({**both, **RENDEZVOUS})
    assert (settings.rank, settings.size, settings.store) == (1, 3, "tcp://127.0.0.1:4567")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MEETING}, "does not lie within"),
        ({"RANK": "zero", "WORLD_SIZE": "2", **MEETING}, "RANK='zero'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "where to meet"),
    ],
)
def test_what_cannot_be_is_refused_by_name(environment, words):
    with pytest.raises(ValueError, match=words):
        LauncherSettings.read(environment)


def test_stall_check_is_tuned_and_switched_off():
    names = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
    tuned = LauncherSettings.read({names[0]: "5", names[1]: "9"}).options
    assert (tuned.stall_warning_seconds, tuned.stall_failure_seconds) == (5.0, 9.0)
    off = LauncherSettings.read({names[0]: "5", "HOROVOD_STALL_CHECK_DISABLE": "1"}).options
    assert (off.stall_warning_seconds, off.stall_failure_seconds) == (0.0, 0.0)


def test_fusion_threshold_and_host_name_are_passed_on():
    options = LauncherSettings.read(
        {"HOROVOD_FUSION_THRESHOLD": "1024", "HOROVOD_HOSTNAME": "h1"}
    ).options
    assert (options.fusion_bytes, options.host) == (1024, "h1")


@pytest.mark.parametrize(
    ("word", "wish"), [("", "auto"), ("NCCL", "nccl"), ("host", "host"), ("MPI", "host")]
)
def test_operations_on_gpus_are_chosen_by_a_word(word, wish):
    options = LauncherSettings.read({"HOROVOD_GPU_OPERATIONS": word}).options
    assert options.device_operations == wish


def test_other_words_for_operations_on_gpus_are_refused():
    with pytest.raises(ValueError, match="HOROVOD_GPU_OPERATIONS='DDL' must be one of NCCL, HOST"):
        LauncherSettings.read({"HOROVOD_GPU_OPERATIONS": "DDL"})
