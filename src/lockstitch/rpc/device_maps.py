"""Device maps at the start of a worker: they are told to the others and checked before any call.

In a static group a worker with a map publishes it with its entry. Only where there is such an entry
do all say how many devices they have, and then all check all maps, so that all fail or none does.
Where there are more than 64 workers each checks its own, for which it reads what those say to whom
it maps; then they tell each other whether all is well (`static_group.first_objection`).
Where workers come and go, one that comes checks what its own maps say of its own devices; whether
the other has the device that they name shows in the call.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from lockstitch.devices import kinds
from lockstitch.devices.kinds import initialise_gpus, is_gpu, is_host
from lockstitch.errors import RemoteProtocolError
from lockstitch.rendezvous.large_group import MOST_WHO_READ_ALL
from lockstitch.rendezvous.static_group import exchange, failing_together, first_objection
from lockstitch.rendezvous.store import missing_keys, read_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.distributed.distributed_c10d import Store

    from lockstitch.rendezvous import StaticRoster
    from lockstitch.rpc.options import TensorPipeRpcBackendOptions

Maps = dict[str, dict[torch.device, torch.device]]


HAS_DEVICES = "devices"
"""A part of the kind of a worker that has a device map (`Member.kind`)."""


@dataclass(frozen=True)
class DeviceUse:
    """What one worker's options say of devices, and how many CUDA devices the worker has (None: it
    was not asked)."""

    maps: Maps = field(default_factory=dict)
    devices: tuple[torch.device, ...] = ()
    count: int | None = None

    @classmethod
    def of(cls, options: TensorPipeRpcBackendOptions) -> DeviceUse:
        """Takes from the options what they say of devices; the count is left open."""
        maps = {name: dict(map_) for name, map_ in options.device_maps.items() if map_}
        return cls(maps, tuple(options.devices))

    def encode(self) -> str:
        """Returns the text that is published; an empty one where the options say nothing."""
        if not self.maps and not self.devices:
            return ""
        maps = {
            name: [[str(source), str(target)] for source, target in map_.items()]
            for name, map_ in self.maps.items()
        }
        return json.dumps([maps, [str(device) for device in self.devices]])

    @classmethod
    def decode(cls, text: str, count: int | None = None) -> DeviceUse:
        """Reads such a text. Raises `RemoteProtocolError` for what is none."""
        if not text:
            return cls(count=count)
        try:
            maps, listed = json.loads(text)
            return cls(
                {
                    str(name): {torch.device(a): torch.device(b) for a, b in pairs}
                    for name, pairs in maps.items()
                },
                tuple(map(torch.device, listed)),
                count,
            )
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise RemoteProtocolError(f"this is no worker's device map: {text!r}") from error


def count_devices() -> int:
    """Returns how many CUDA devices this worker has, without initialising CUDA."""
    return kinds.count()


def agree(store: Store, roster: StaticRoster, timeout_seconds: float) -> None:
    """Checks the maps of all workers of a static group, if there are any, on each of them, and
    initialises CUDA where they say that it will be used. Raises what `check` raises, and
    `RuntimeError` for workers that do not come."""
    if not any(HAS_DEVICES in kind.split(",") for kind in roster.census.kinds):
        return
    if roster.size > MOST_WHO_READ_ALL:
        _agree_in_blocks(store, roster, timeout_seconds)
        return
    members = roster.members()
    counts = exchange(store, roster, "devices", str(count_devices()), timeout_seconds)
    uses = {
        member.info.name: DeviceUse.decode(member.devices, int(count))
        for member, count in zip(members, counts, strict=True)
    }
    with failing_together(store, roster.me, len(members)):
        check(uses)
    initialise(roster.me.name, uses)


def _agree_in_blocks(store: Store, roster: StaticRoster, timeout_seconds: float) -> None:
    """Does the same where there are many workers."""
    me = roster.me
    keys = f"meeting/{me.generation}/devices", f"meeting/{me.generation}/is mapped to"
    count = count_devices()
    store.set(f"{keys[0]}/{me.id}", str(count))
    objection, uses = "", {me.name: DeviceUse(count=count)}
    try:
        member = roster.find(me.id)
        mine = DeviceUse.decode("" if member is None else member.devices, count)
        uses[me.name] = mine
        found = {name: roster.find(name) for name in mine.maps}
        targets = {name: each for name, each in found.items() if each is not None}
        counted = [f"{keys[0]}/{each.info.id}" for each in targets.values()]
        if counted and (missing := missing_keys(store, counted, timeout_seconds)):
            raise RuntimeError(f"{me.name} waited {timeout_seconds:g} s for {missing}")
        counts = read_all(store, counted)
        for (name, target), said in zip(targets.items(), counts, strict=True):
            theirs = DeviceUse.decode(target.devices, int(said))
            uses.setdefault(name, dataclasses.replace(theirs, maps={}))
            if any(map(is_gpu, mine.maps[name].values())):
                store.set(f"{keys[1]}/{target.info.id}", "")
        check(uses)
    except (RuntimeError, ValueError) as error:
        objection = str(error)
    with failing_together(store, me, roster.size):
        if first := first_objection(store, roster, "device maps", objection, timeout_seconds):
            raise ValueError(first)
    if store.check([f"{keys[1]}/{me.id}"]):
        initialise_gpus()
    else:
        initialise(me.name, uses)


def check_alone(name: str, use: DeviceUse) -> None:
    """Does the same for this worker alone, where workers come and go."""
    if use.encode():
        uses = {name: dataclasses.replace(use, count=count_devices())}
        check(uses, is_static=False)
        initialise(name, uses)


def check(uses: Mapping[str, DeviceUse], *, is_static: bool = True) -> None:
    """Raises `ValueError` for maps and devices that cannot be as they are. `uses`: of all workers,
    by name; where they come and go, of those that are there."""
    for node, use in uses.items():
        if len(set(use.devices)) != len(use.devices):
            raise ValueError(f"Node {node} has duplicated devices\ndevices = {[*use.devices]}")
        if not _are_there(use.devices, use.count):
            raise ValueError(
                f"Node {node} has devices with invalid indices\ndevices = {[*use.devices]}\n"
                f"device count = {use.count}"
            )
    for node, use in uses.items():
        if is_static and not use.maps.keys() <= uses.keys():
            raise ValueError(
                f"Node {node} has invalid target node names in its device maps\n"
                f"device maps = {[*use.maps]}\nnode names = {[*uses]}"
            )
        for target in use.maps:
            _check_map(node, use, target, uses.get(target, DeviceUse()))


def _check_map(node: str, use: DeviceUse, target: str, other: DeviceUse) -> None:
    map_ = use.maps[target]
    shown = f"in its device map for {target}\ndevice map = {map_}\n"
    if len(set(map_.values())) != len(map_):
        raise ValueError(f"Node {node} has duplicated target devices {shown}")
    sides = (("source", map_.keys(), use), ("target", map_.values(), other))
    for side, named, owner in sides:
        if owner.devices:
            if not {each for each in named if not is_host(each)} <= {*owner.devices}:
                raise ValueError(
                    f"Node {node} has unexpected {side} devices {shown}devices = {[*owner.devices]}"
                )
        elif not _are_there(named, owner.count):
            raise ValueError(
                f"Node {node} has {side} devices with invalid indices {shown}"
                f"device count = {owner.count}"
            )


def _are_there(named: Iterable[torch.device], count: int | None) -> bool:
    return all(
        is_host(each) or (is_gpu(each) and (count is None or 0 <= (each.index or 0) < count))
        for each in named
    )


def initialise(name: str, uses: Mapping[str, DeviceUse]) -> None:
    """Initialises CUDA where a map or a list says that this worker will use it: the first call
    shall not have to wait for that."""
    mine = uses[name]
    named = {*mine.devices, *(source for map_ in mine.maps.values() for source in map_)}
    for use in uses.values():
        named.update(use.maps.get(name, {}).values())
    if any(map(is_gpu, named)):
        initialise_gpus()
