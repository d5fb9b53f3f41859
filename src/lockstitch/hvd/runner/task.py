"""What each worker of `hvd.run` does: `python -m lockstitch.hvd.runner.task FOLDER`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lockstitch.hvd.environment import LauncherSettings
from lockstitch.hvd.runner.job_folder import JobFolder, World
from lockstitch.launcher_link.process import JOB

if TYPE_CHECKING:
    from collections.abc import Mapping


def main(folder: str, environment: Mapping[str, str]) -> None:
    """Calls the function; what it returns or raises goes into the job folder."""
    job_folder = JobFolder(folder)
    worker = environment.get("LOCKSTITCH_WORKER") or environment.get("RANK") or "0"
    try:
        func, args, kwargs = job_folder.call()
        value = func(*args, **kwargs)
        job_folder.put_result(_world(environment), value)
    except Exception as error:
        job_folder.put_error(f"rank{worker}", error)
        raise


def _world(environment: Mapping[str, str]) -> World:
    link = JOB.client()
    if link is None:
        settings = LauncherSettings.read(environment)
        return World(0, settings.rank, settings.size)
    place = link.place
    return World(0, 0, 1) if place is None else World(place.generation, place.rank, place.size)


if __name__ == "__main__":
    main(sys.argv[1], os.environ)
