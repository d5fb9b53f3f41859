"""`run`: a function on many ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from lockstitch.errors import CollectiveError
from lockstitch.hvd.runner.desk import Desk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


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

    Raises what the rank that failed first raised, with its traceback as the cause;
    `HorovodInternalError` where a rank ended without a word.
    """
    del disable_cache, use_gloo, use_mpi, mpi_args, network_interface, network_interfaces
    options = {
        "-np": num_proc or np or (None if min_num_proc or min_np or hosts or hostfile else 1),
        "--min-np": min_num_proc or min_np,
        "--max-np": max_num_proc or max_np,
        "--slots-per-host": slots,
        "--reset-limit": reset_limit,
        "-H": hosts,
        "--hostfile": hostfile,
        "--host-discovery-script": host_discovery_script,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
    }
    words = [word for name, value in options.items() if value is not None for word in (name, value)]
    if cooldown_range is not None:
        words += ["--blacklist-cooldown-range", *cooldown_range]
    if verbose:
        words.append("--verbose")
    with tempfile.TemporaryDirectory(prefix="lockstitch-") as folder:  # of mode 0700
        desk = Desk(folder)
        desk.put_call(func, args, kwargs or {})
        return _launched(desk, [str(word) for word in words], executable)


def _launched(desk: Desk, options: list[str], executable: str | None) -> list[Any]:
    environment = dict(os.environ)
    if executable is None:  # what `func` comes from is found as it was here
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    status = subprocess.run(
        [
            *(sys.executable, "-m", "lockstitch", "run", *options),
            *(executable or sys.executable, "-m", "lockstitch.hvd.runner.task", str(desk.folder)),
        ],
        env=environment,
        check=False,
    ).returncode
    if status == 0:
        return desk.results(desk.world_size())
    raise desk.error() or CollectiveError(
        f"a rank ended without a result, and the launcher with status {status}: see what was "
        "written to stderr"
    )
