"""Ray itself, imported when it is needed and not before: it is an extra."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def find_ray(part: str = "") -> ModuleType:
    """Returns the module `ray`, or a part of it such as `util.queue`. Raises `ImportError`, with
    what to install, where there is no Ray."""
    try:
        return import_module(f"ray.{part}" if part else "ray")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ImportError(
            "this runs on Ray, which is not installed here: pip install 'lockstitch[ray]'",
            name="ray",
        ) from error


def running_ray() -> ModuleType:
    """Returns `ray`, connected to a cluster: the one that the program has connected to, else the
    one that the environment names, else a new one on this machine, as `ray.init()` chooses."""
    ray = find_ray()
    if not ray.is_initialized():
        ray.init()
    return ray
