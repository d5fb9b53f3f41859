from __future__ import annotations

import contextlib
import socket

import pytest

from lockstitch.hvd.environment import LauncherSettings
from lockstitch.rendezvous import launchers
from lockstitch.rendezvous.launchers import meeting_place, meeting_url, rank_alone

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
    racks = {**SLURM, "SLURM_STEP_NODELIST": "rack[2-3]n[01-04]"}
    assert meeting_place(racks)[0] == "rack2n01"


def test_the_batch_script_itself_is_no_rank():
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "4711"}
    settings = LauncherSettings.read(script)
    assert (settings.rank, settings.size) == (0, 1)


def test_a_launcher_within_the_step_comes_first():
    settings = LauncherSettings.read({**SLURM, "RANK": "0", "WORLD_SIZE": "1"})
    assert (settings.rank, settings.size) == (0, 1)


def test_processes_of_a_step_whose_node_has_no_name_meet_where_it_was_launched(monkeypatch):
    def nobody_knows(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(launchers.socket, "getaddrinfo", nobody_knows)
    launched = {**SLURM, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    host, port = meeting_place(launched)
    assert host == "10.0.0.7"
    assert port == meeting_place(SLURM)[1]
    assert meeting_place(SLURM)[0] == "gpu07"


SPREAD = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("told", "host"),
    [
        ({"OMPI_MCA_orte_hnp_uri": "1049493504.0;tcp://10.0.0.7,172.17.0.1:57815"}, "10.0.0.7"),
        ({"SLURM_JOB_NODELIST": "n[3-4]"}, "n3"),
    ],
    ids=["where mpirun runs", "an allocation of Slurm"],
)
def test_ranks_of_mpi_on_several_hosts_meet_at_the_first_where_that_is_told(told, host):
    ranks = [{**SPREAD, **told, "OMPI_COMM_WORLD_RANK": str(rank)} for rank in range(4)]
    places = {meeting_place(environment) for environment in ranks}
    assert {place[0] for place in places} == {host}
    assert len(places) == 1


def test_ports_are_those_that_a_firewall_leaves_open():
    for job in range(50):
        name = {"PMIX_NAMESPACE": f"prterun-host-{job}@1"}
        place = {**OPEN_MPI, **name, "LOCKSTITCH_PORT_RANGE": "20000-20009"}
        assert meeting_place(place)[1] in range(20_000, 20_010)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "3"}, 3),  # torch reads it alone, where the program says the size
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "RANK": "0", "WORLD_SIZE": "2"}, 1),
        (OPEN_MPI, 1),
        (SLURM, 5),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, 1),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
    ],
)
def test_rank_is_what_a_launcher_says(environment, rank):
    assert rank_alone(environment) == rank


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        ({"MASTER_ADDR": "h"}, None),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "1", **SLURM}, "env://"),
        (
            {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "fd00::1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "7"},
            "tcp://[fd00::1]:7",
        ),
    ],
)
def test_where_ranks_meet_is_what_a_launcher_says(environment, url):
    assert meeting_url(environment) == url


def test_impossible_ranks_are_refused_whoever_says_them():
    with pytest.raises(ValueError, match="SLURM_PROCID=8 does not lie within"):
        rank_alone({**SLURM, "SLURM_PROCID": "8"})
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK='x' is not a whole number"):
        rank_alone({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"})
