"""What the actor of a rank can be asked in `horovod.ray`: the workers of `RayExecutor`, and actors
that programs make themselves."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from lockstitch.ray.engine import find_ray
from lockstitch.ray.log import LOG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class BaseHorovodWorker:
    """A rank's process, for programs that start its actor themselves: it is told rank and size.
    Where the ranks meet, and by which secret, is for the program to say (`update_env_vars`);
    `RayExecutor` does all of that by itself, and has workers of its own."""

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        os.environ["HOROVOD_HOSTNAME"] = self.hostname()
        os.environ["HOROVOD_RANK"] = str(world_rank)
        os.environ["HOROVOD_SIZE"] = str(world_size)

    def __repr__(self) -> str:
        return type(self).__name__  # which Ray shows in errors

    def hostname(self) -> str:
        """Returns the name of this process's host."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[int]:
        """Returns the numbers of the GPUs that Ray has given to this actor."""
        return list(find_ray().get_gpu_ids())

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Sets variables of this process; values become strings."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """Returns the variables of this process."""
        return dict(os.environ)

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the object that functions of `execute` are called with."""
        if executable_cls is not None:
            self.executable = executable_cls(*executable_args or (), **executable_kwargs or {})

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Returns what a function returns, which is called with the object of
        `start_executable`."""
        return func(self.executable)

    def set_queue(self, queue: Any) -> None:
        """Has `log` write to that queue of Ray's; None: to none."""
        LOG.configure(queue)
