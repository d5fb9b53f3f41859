from __future__ import annotations

import contextlib
import socket

import pytest

from lockstitch.hvd.batch import first_node, meeting_place
from lockstitch.hvd.environment import LauncherSettings

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-1234@1",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}


def test_ranks_of_mpi_on_one_host_meet_there():
    settings = LauncherSettings.read(OPEN_MPI)
    assert (settings.rank, settings.size) == (1, 4)
    assert settings.store.startswith("tcp://127.0.0.1:2")
    assert LauncherSettings.read({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"}).store == settings.store
    another = LauncherSettings.read({**OPEN_MPI, "PMIX_NAMESPACE": "prterun-host-1235@1"})
    assert another.store != settings.store


def test_ranks_of_mpi_on_several_hosts_must_be_told_where_to_meet():
    spread = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        LauncherSettings.read(spread)
    told = {**spread, "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
    assert LauncherSettings.read(told).store == "env://"


def test_ranks_of_mpich_meet_by_the_process_that_started_them():
    def place_of(rank, line):
        told = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_FD": str(line.fileno())}
        return LauncherSettings.read({**told, "PMI_RANK": str(rank)})

    with contextlib.ExitStack() as open_sockets:
        lines = [open_sockets.enter_context(end) for _ in range(2) for end in socket.socketpair()]
        first, second = place_of(0, lines[0]), place_of(1, lines[2])
    assert (second.rank, second.size) == (1, 2)
    assert first.store == second.store
    address, _, port = first.store.rpartition(":")
    assert address == "tcp://127.0.0.1"
    assert int(port) in range(20_000, 32_000)


@pytest.mark.parametrize("line", ["", "none", "1000000"])
def test_ranks_of_mpich_without_that_must_be_told_where_to_meet(line):
    told = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_FD": line}
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        LauncherSettings.read(told)


def test_processes_of_a_step_of_slurm_meet_on_its_first_node():
    settings = LauncherSettings.read(SLURM)
    assert (settings.rank, settings.size) == (5, 8)
    assert settings.store.startswith("tcp://gpu07:")
    assert meeting_place(SLURM) != meeting_place({**SLURM, "SLURM_STEP_ID": "1"})


def test_the_batch_script_itself_is_no_rank():
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "4711"}
    settings = LauncherSettings.read(script)
    assert (settings.rank, settings.size) == (0, 1)


def test_a_launcher_within_the_step_comes_first():
    settings = LauncherSettings.read({**SLURM, "RANK": "0", "WORLD_SIZE": "1"})
    assert (settings.rank, settings.size) == (0, 1)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[3-5],m", "n3"), ("rack-2-n[010,12]", "rack-2-n010")],
)
def test_first_of_a_list_of_nodes(nodes, first):
    assert first_node(nodes) == first


def test_what_is_no_list_of_nodes_is_refused():
    with pytest.raises(ValueError, match="no list of nodes"):
        first_node("")
