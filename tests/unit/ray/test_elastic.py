"""The starter and the discovery, with a Ray that only notes what it is told."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from lockstitch.errors import CollectiveError, PlacementError, RankLostError
from lockstitch.launcher_link.client import REACHED_AT
from lockstitch.launcher_link.rank_coordinator import Ended
from lockstitch.launcher_link.slots import Slot
from lockstitch.ray import elastic
from lockstitch.ray.calls import Call
from lockstitch.ray.elastic import ActorStarter, ElasticPlan, NodeDiscovery, WorkerTask, _failure
from lockstitch.ray.settings import WorkerResources
from lockstitch.ray.worker import Outcome
from lockstitch.trust import Secret
from tests.unit.ray.cluster import FakeRay

ONE = WorkerResources()


@pytest.fixture
def cluster(monkeypatch):
    nodes = ("n1", "10.0.0.1", {"CPU": 2.0}), ("n2", "10.0.0.2", {"CPU": 1.0, "GPU": 1.0})
    return FakeRay(*nodes).install(monkeypatch)


def test_nodes_have_so_many_slots_and_those_known_longest_come_first(cluster):
    discovery = NodeDiscovery(ONE)
    assert discovery.slots() == (("n1", 2), ("n2", 1))
    cluster.node_list.insert(0, {**cluster.node_list[0], "NodeID": "n0"})
    cluster.node_list[1]["Alive"] = False
    assert discovery.slots() == (("n2", 1), ("n0", 2))
    assert discovery.address_of("n2") == "10.0.0.2"
    assert NodeDiscovery(WorkerResources(1, 1)).slots() == (("n2", 1),)


def test_a_discovery_of_the_programs_own_names_nodes_by_address_or_number(cluster):
    own = SimpleNamespace(find_available_hosts_and_slots=lambda: {"10.0.0.1": 5, "n2": 0})
    assert NodeDiscovery(ONE, own).slots() == (("n1", 5),)


def test_names_that_nodes_have_as_resources_are_hosts_of_their_own(cluster):
    cluster.node_list[1]["Resources"] |= {"node:a": 1.0, "node:b": 1.0}
    told = {"a": 2, "b": 1, "10.0.0.1": 1, "elsewhere": 4}
    discovery = NodeDiscovery(ONE, SimpleNamespace(find_available_hosts_and_slots=lambda: told))
    assert set(discovery.slots()) == {("n1", 1), ("a", 2), ("b", 1)}
    assert [discovery.number_of(name) for name in ("n1", "a", "b")] == ["n1", "n2", "n2"]
    assert discovery.address_of("b") == "10.0.0.2"


def test_too_few_slots_are_waited_for_briefly_and_told_with_what_there_is(cluster):
    with pytest.raises(PlacementError, match=r"4 workers .*has room for 3 after 0 s.*10\.0\.0\.1"):
        NodeDiscovery(ONE).wait_for_slots(ElasticPlan(ONE, 4), 0.0)
    assert (
        sum(count for _, count in NodeDiscovery(ONE).wait_for_slots(ElasticPlan(ONE, 3), 0.0)) == 3
    )


@pytest.mark.parametrize("numbers", [(0, None), (3, 2)])
def test_numbers_that_make_no_sense_are_refused(numbers):
    with pytest.raises(ValueError, match=r"at least 1|more than"):
        ElasticPlan(ONE, *numbers)


class Handle:
    """An actor that notes the calls of its methods."""

    def __init__(self):
        self.calls, self.result = [], Future()

    def __getattr__(self, name):
        def remote(*arguments):
            self.calls.append((name, arguments))
            return SimpleNamespace(future=lambda: self.result)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def starter(cluster, monkeypatch):
    made, posted, options = [], [], []

    def actor_class(_class):
        def with_options(**chosen):
            options.append(chosen)
            if cluster.has_room is None:
                raise OSError("Ray has gone")
            made.append(Handle())
            return SimpleNamespace(remote=lambda: made[-1])

        return SimpleNamespace(options=with_options)

    cluster.module.remote = actor_class
    discovery = NodeDiscovery(ONE)
    discovery.slots()
    task = WorkerTask(Call(max, [1, 2]), variables={"A": "1"})
    starter = ActorStarter(task, ElasticPlan(ONE), Secret.make(), discovery, posted.append)
    starter.made, starter.posted, starter.options = made, posted, options
    return starter


def test_a_worker_is_started_on_its_node_and_told_where_it_is_reached(starter):
    starter.start(4, Slot("n2", 0), {"LOCKSTITCH_WORKER": "4"})
    assert starter.options == [{"num_cpus": 1, "num_gpus": 0, "scheduling_strategy": ("n2", False)}]
    (prepare, live) = starter.made[0].calls
    environment, secret = prepare[1]
    assert environment == {
        "LOCKSTITCH_WORKER": "4",
        REACHED_AT: "10.0.0.2",
        "LOCKSTITCH_ADDRESS": "10.0.0.2",
        "A": "1",
    }
    assert len(secret) == 64
    assert live[0] == "live"


def test_what_becomes_of_workers_is_told_and_their_values_kept(starter):
    for worker in (0, 1, 2):
        starter.start(worker, Slot("n1", worker), {})
    starter.made[0].result.set_result(Outcome(False, "one"))
    starter.made[1].result.set_result(Outcome(True, None))
    starter.made[2].result.set_exception(ValueError("bug"))
    assert starter.posted == [Ended(0, True), Ended(1, True), Ended(2, False)]
    assert starter.values == {0: "one"}
    ((who, error),) = starter.errors
    assert who == "worker 2 on node 10.0.0.1"
    assert isinstance(error, ValueError)


def test_what_cannot_be_started_has_ended_at_once(starter, cluster):
    cluster.has_room = None
    starter.start(0, Slot("n1", 0), {})
    assert starter.posted == [Ended(0, False)]
    starter.stop(0, signal.SIGKILL)
    assert cluster.killed == []


def test_who_runs_is_killed_and_who_has_ended_is_left_alone(starter, cluster):
    starter.start(0, Slot("n1", 0), {})
    starter.start(1, Slot("n1", 1), {})
    starter.made[1].result.set_result(Outcome(False, 0))
    starter.stop(1, signal.SIGKILL)
    assert cluster.killed == []
    starter.close()
    starter.close()
    assert cluster.killed == [starter.made[0]]


def test_a_job_has_failed_of_what_somebody_has_failed_of_by_himself():
    lost, bug = RankLostError("rank 1 is gone"), ValueError("bug")
    error = _failure("too few", [("worker 0", lost), ("worker 1", bug)])
    assert isinstance(error, CollectiveError)
    assert "too few. worker 1 failed first: ValueError('bug')" in str(error)
    assert error.__cause__ is bug
    assert _failure("too few", [("worker 0", lost)]).__cause__ is lost
    assert "the job has failed: too few" in str(_failure("too few", []))


def test_the_first_world_waits_for_as_many_as_there_is_room_for_now(cluster):
    job = elastic.ElasticJob(ElasticPlan(ONE, 1, 2), SimpleNamespace(discovery=None))
    assert job._wanted(cluster.module, (("n1", 2), ("n2", 1))) == 2
    job = elastic.ElasticJob(ElasticPlan(ONE, 1), SimpleNamespace(discovery=None))
    assert job._wanted(cluster.module, (("n1", 2), ("n2", 1))) == 3
    cluster.node_list[0]["Resources"]["CPU"] = 0.0  # somebody else uses it
    assert job._wanted(cluster.module, (("n1", 2), ("n2", 1))) == 1
