"""What each worker of `hvd.run` does: `python -m lockstitch.hvd.runner.task FOLDER`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lockstitch.hvd.environment import LauncherSettings
from lockstitch.hvd.runner.job_folder import JobFolder
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
        job_folder.put_result(_rank(environment), value)
    except Exception as error:
        job_folder.put_error(f"rank{worker}", error)
        raise


def _rank(environment: Mapping[str, str]) -> int:
    link = JOB.client()
    if link is None:
        return LauncherSettings.read(environment).rank
    return 0 if link.place is None else link.place.rank


if __name__ == "__main__":
    main(sys.argv[1], os.environ)
