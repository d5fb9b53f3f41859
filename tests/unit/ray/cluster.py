"""Of Ray, what the tests without it need: nodes, placement groups, and actors that run at once."""

from __future__ import annotations

import sys
import types


class GetTimeoutError(Exception):
    """As Ray's."""


class RayActorError(Exception):
    """As Ray's."""


class ActorDiedError(RayActorError):
    """As Ray's."""


class Group:
    """A placement group."""

    def __init__(self, is_there):
        self._is_there = is_there
        self.waited = []

    def wait(self, seconds):
        self.waited.append(seconds)
        return self._is_there


class FakeRay:
    """The modules that `find_ray` finds."""

    def __init__(self, *nodes):
        self.node_list = [
            {
                "NodeID": name,
                "Alive": True,
                "NodeManagerAddress": address,
                "Resources": resources,
            }
            for name, address, resources in nodes
        ]
        self.groups, self.removed, self.killed = [], [], []
        self.has_room = True

    def install(self, monkeypatch):
        ray = self.module = types.ModuleType("ray")
        ray.is_initialized = lambda: True
        ray.nodes = lambda: self.node_list
        ray.kill = self.killed.append
        ray.put = lambda value: value
        ray.available_resources = lambda: {
            name: sum(node["Resources"].get(name, 0.0) for node in self.node_list)
            for name in ("CPU", "GPU")
        }
        placement = types.ModuleType("ray.util.placement_group")
        placement.placement_group = self._reserve
        placement.remove_placement_group = self.removed.append
        placement.get_current_placement_group = lambda: None
        exceptions = types.ModuleType("ray.exceptions")
        for error in (GetTimeoutError, RayActorError, ActorDiedError):
            setattr(exceptions, error.__name__, error)
        client = types.ModuleType("ray.util.client")
        client.ray = types.SimpleNamespace(is_connected=lambda: False)
        strategies = types.ModuleType("ray.util.scheduling_strategies")
        strategies.NodeAffinitySchedulingStrategy = lambda node, soft: (node, soft)
        for module in (
            ray,
            types.ModuleType("ray.util"),
            placement,
            exceptions,
            client,
            strategies,
        ):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        return self

    def _reserve(self, bundles, strategy):
        self.groups.append((bundles, strategy, group := Group(self.has_room)))
        return group
