"""Programs on two hosts that know nothing but what a launcher and the secret's file tell them, and
what they say where that is not enough."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lockstitch.trust import Secret
from tests.processes.two_hosts import ADDRESSES, IPV6_ADDRESSES, NAMES, TwoHosts, outputs

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

CALL = """
import os, sys, torch
from lockstitch import rpc
try:
    rpc.init_rpc("w{rank}", world_size=2)
    rank = rpc.get_worker_info().id
    print(rpc.rpc_sync(f"w{1 - rank}", torch.add, (torch.ones(2), rank)).tolist())
    rpc.shutdown()
except (RuntimeError, ValueError, OSError) as error:
    print(type(error).__name__, error)
"""
REDUCE = """
import lockstitch.hvd as hvd, torch
try:
    hvd.init()
    print(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.cross_size())
    hvd.shutdown()
except (RuntimeError, ValueError, OSError) as error:
    print(type(error).__name__, error)
"""
OF_TORCH = """
import torch, torch.distributed as dist, lockstitch.c10d
try:
    dist.init_process_group("lockstitch")
    tensor = torch.full((50_000,), 1.0 + dist.get_rank())
    dist.all_reduce(tensor)
    (dist.recv if dist.get_rank() else dist.send)(tensor[:1], 1 - dist.get_rank())
    print(tensor[0].item())
    dist.destroy_process_group()
except (RuntimeError, ValueError, OSError) as error:
    print(type(error).__name__, error)
"""
WELL = {
    CALL: ["[1.0, 1.0]\n", "[2.0, 2.0]\n"],
    REDUCE: ["2.0 2\n"] * 2,
    OF_TORCH: ["3.0\n"] * 2,
}
both_faces = pytest.mark.parametrize("program", [CALL, REDUCE], ids=["rpc", "hvd"])
three_faces = pytest.mark.parametrize(
    "program", [CALL, REDUCE, OF_TORCH], ids=["rpc", "hvd", "c10d"]
)


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with TwoHosts() as hosts:
        yield hosts


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, str]:
    """The only thing that a user provides."""
    Secret.make().write(tmp_path / "secret")
    return {"LOCKSTITCH_SECRET_FILE": str(tmp_path / "secret")}


def of_torchrun(rank: int, place: str = NAMES[0]) -> dict[str, str]:
    numbers = {"RANK": str(rank), "WORLD_SIZE": "2"}
    return {**numbers, "MASTER_ADDR": place, "MASTER_PORT": "29777"}


def of_horovod(rank: int) -> dict[str, str]:
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": ADDRESSES[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29778",
    }


def of_slurm(rank: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "alpha,beta",
    }


def of_open_mpi(rank: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMIX_NAMESPACE": "prterun-alpha-1234@1",
        "OMPI_MCA_orte_hnp_uri": f"1.0;tcp://{ADDRESSES[0]}:57815",
    }


def start(
    hosts: TwoHosts, program: str, of_rank: Callable[[int], dict[str, str]], **also: str
) -> list[subprocess.Popen[str]]:
    return [hosts.python(rank, program, {**of_rank(rank), **also}) for rank in range(2)]


_OF_STORE = re.compile(r"\[c10d\]|^Exception raised from |^frame #|^<omitting python frames>|^\s*$")


def lines(printed: list[str]) -> list[str]:
    """Without what torch's store says of names that lead nowhere, and of a store that has gone."""
    kept = [
        [line for line in text.splitlines(True) if not _OF_STORE.search(line)] for text in printed
    ]
    return ["".join(each) for each in kept]


@both_faces
@pytest.mark.parametrize(
    "of_rank", [of_torchrun, of_horovod, of_slurm, of_open_mpi], ids=lambda it: it.__name__
)
def test_the_secret_is_all_that_a_user_provides(hosts, secret, program, of_rank) -> None:
    assert lines(outputs(start(hosts, program, of_rank, **secret))) == WELL[program]


def test_a_group_of_torch_reduces_and_sends_messages_between_hosts(hosts, secret) -> None:
    assert lines(outputs(start(hosts, OF_TORCH, of_torchrun, **secret))) == WELL[OF_TORCH]


@both_faces
def test_hosts_meet_by_ipv6(hosts, secret, program) -> None:
    started = start(hosts, program, lambda rank: of_torchrun(rank, IPV6_ADDRESSES[0]), **secret)
    assert lines(outputs(started)) == WELL[program]


@both_faces
def test_an_interface_may_be_named(hosts, secret, program) -> None:
    named = {**secret, "LOCKSTITCH_IFNAME": "wir"}
    assert lines(outputs(start(hosts, program, of_torchrun, **named))) == WELL[program]
    wrong = {**secret, "LOCKSTITCH_IFNAME": "ib"}
    told = lines(outputs(start(hosts, program, of_torchrun, **wrong)))
    for name, line in zip(NAMES, told, strict=True):
        assert f"'ib' fits no interface of {name} " in line
        assert "wire (10.213.77." in line


def test_without_a_secret_init_rpc_refuses_at_once_and_names_the_variable(hosts) -> None:
    for line in lines(outputs(start(hosts, CALL, of_torchrun), 60.0)):
        assert line.startswith("RuntimeError worker 'w1' is on host beta, but worker 'w0'"), line
        assert "on host alpha can be reached from there only" in line
        assert "LOCKSTITCH_SECRET_FILE" in line


@both_faces
@pytest.mark.parametrize("has_another", [True, False], ids=["old", "none"])
def test_another_secret_on_one_host_is_told_on_both(
    hosts, secret, tmp_path, program, has_another
) -> None:
    Secret.make().write(tmp_path / "old")
    old = {"LOCKSTITCH_SECRET_FILE": str(tmp_path / "old")} if has_another else {}
    of_ranks = [{**of_torchrun(0), **secret}, {**of_torchrun(1), **old}]
    started = [hosts.python(rank, program, told) for rank, told in enumerate(of_ranks)]
    for name, line in zip(NAMES, lines(outputs(started, 60.0)), strict=True):
        assert line.startswith("RemoteProtocolError"), line
        assert f"on host {name}" in line
        assert "LOCKSTITCH_SECRET_FILE" in line


def test_ten_open_ports_let_calls_through_a_firewall(hosts, secret) -> None:
    for host in range(2):
        hosts.close_ports(host, "20000:20009")
    ports = {**secret, "LOCKSTITCH_PORT_RANGE": "20000-20009"}

    def of_rank(rank: int) -> dict[str, str]:
        return {**of_torchrun(rank), "MASTER_PORT": "20009"}

    assert lines(outputs(start(hosts, CALL, of_rank, **ports))) == WELL[CALL]


@three_faces
@pytest.mark.parametrize("is_told", [False, True], ids=["drops", "refuses"])
def test_a_firewall_that_closes_ports_is_told_with_the_names_of_hosts(
    hosts, secret, program, is_told
) -> None:
    for host in range(2):
        hosts.close_ports(host, "29777", is_told=is_told)  # but that where all meet
    for line in lines(outputs(start(hosts, program, of_torchrun, **secret))):
        words = "did not answer in 10 s|did not come to rank 0 within 10 s"
        assert re.search("Connection refused; unless" if is_told else words, line), line
        assert re.search(r"on host (alpha|beta)|\(host alpha\)", line), line
        assert "a firewall closes that port (LOCKSTITCH_PORT_RANGE" in line
        assert any(name in line for name in NAMES)


def test_who_runs_another_version_is_told_on_both_though_rank_0_ends_at_once(hosts, secret) -> None:
    program = """
import os
from lockstitch import hvd
from lockstitch.collectives import opening
if os.environ["RANK"] == "1":
    opening.__version__ = "0.0.1"
try:
    hvd.init()
except RuntimeError as error:
    print(error, flush=True)
    os._exit(1)
"""
    for said in outputs(start(hosts, program, of_torchrun, **secret), 60.0):
        assert re.search(r"rank 1, on host beta, 0\.0\.1, and neither would understand", said), said


def test_where_no_network_is_common_the_wait_is_told(hosts, secret) -> None:
    hosts.take_down()
    wait = {**secret, "LOCKSTITCH_JOIN_TIMEOUT": "6"}
    first, second = lines(outputs(start(hosts, CALL, of_torchrun, **wait), 60.0))
    assert "on host alpha, waited 6 s for 2 ranks to join, but ranks [1] did not come" in first
    assert "rank 1 waits for rank 0 to meet the others at tcp://alpha:29777" in second
    assert "did not meet the others" in second


def test_an_address_that_leads_nowhere_from_the_other_host_is_told_at_once(hosts, secret) -> None:
    local = {**of_horovod(0), "HOROVOD_GLOO_RENDEZVOUS_ADDR": "localhost"}
    started = [
        hosts.python(rank, REDUCE, {**(of_horovod(1) if rank else local), **secret})
        for rank in range(2)
    ]
    for line in lines(outputs(started, 60.0)):
        assert line.startswith("CollectiveError rank 0, on host alpha, can be reached at"), line
        assert "HOROVOD_GLOO_RENDEZVOUS_ADDR" in line
