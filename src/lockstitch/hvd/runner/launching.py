"""`run`: a function on many ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import CollectiveError
from lockstitch.folders import Folder
from lockstitch.hvd.runner.job_folder import JobFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OPTIONS: Final = {
    "num_proc": "-np",
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "hosts": "-H",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "start_timeout": "--start-timeout",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-filename",
}
"""Arguments of `run` under the names that the launcher has for them."""

_OLDER_NAMES: Final = {"np": "num_proc", "min_np": "min_num_proc", "max_np": "max_num_proc"}
_THAT_SAY_A_NUMBER: Final = ("num_proc", "min_num_proc", "hosts", "hostfile")


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    # Older names of three of them.
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Runs `func(*args, **kwargs)` on `num_proc` ranks (default 1), each a new process, and returns
    what they returned, in the order of ranks. `func` calls `hvd.init()` itself.

    Function, arguments and results go by cloudpickle. The options are those of `lockstitch run`;
    ranks on other hosts must see this one's folder for temporary files (`TMPDIR`). Without meaning
    here: `disable_cache`, `use_gloo`, `use_mpi`, `mpi_args`, `network_interface(s)`.
    `executable`: another Python for the ranks.

    Raises `ValueError` for options that contradict each other, and `HorovodInternalError` where a
    rank fails; its cause is what the rank that failed first raised, with its traceback.
    """
    words = _words(locals())
    with Folder() as folder:
        job_folder = JobFolder(folder)
        job_folder.put_call(func, args, kwargs or {})
        return _launched(job_folder, words, executable)


def _words(given: Mapping[str, Any]) -> list[str]:
    """The launcher's options for the arguments of `run`."""
    for one, other in (("hosts", "hostfile"), ("use_gloo", "use_mpi")):
        if given[one] and given[other]:
            raise ValueError(f"give {one} or {other}, not both")
    chosen = {name: given[name] for name in _OPTIONS}
    for older, name in _OLDER_NAMES.items():
        if chosen[name] is None:
            chosen[name] = given[older]
    if all(chosen[name] is None for name in _THAT_SAY_A_NUMBER):
        chosen["num_proc"] = 1
    words = ["--verbose"] if given["verbose"] else []
    for name, value in chosen.items():
        if value is not None:
            values = value if isinstance(value, tuple | list) else (value,)
            words += [_OPTIONS[name], *map(str, values)]
    return words


def _launched(folder: JobFolder, options: list[str], executable: str | None) -> list[Any]:
    environment = dict(os.environ)
    if executable is None:  # what `func` comes from is found as it was here
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    status = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "lockstitch",
                "run",
                *options,
                "--verdict",
                str(folder.verdict),
            ),
            *(executable or sys.executable, "-m", "lockstitch.hvd.runner.task", str(folder.folder)),
        ],
        env=environment,
        check=False,
    ).returncode
    if status == 0:
        return folder.results()
    words, error = folder.failure()
    raise CollectiveError(
        "Horovod detected that one or more processes exited with non-zero status: "
        f"the launcher ended with status {status}; {words or 'see what was written to stderr'}"
    ) from error
