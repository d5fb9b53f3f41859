"""Which task gets which rank. Spark alternates between executors when it hands tasks out, while
ranks of one host are to be neighbours: they reduce among themselves first, by shared memory.

Values in, values out: the tasks tell each other where they are and all come to the same ranks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lockstitch.launcher_link.fixed_ranks import host_by_host, ranks_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.launcher_link.fixed_ranks import WorkerRanks


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task runs. `host`: what is equal for tasks that share memory and a network
    (`host_identity`); `address`, `port`: where it can await the others, should it be rank 0."""

    host: str
    address: str
    port: int

    def encode(self) -> str:
        """Returns it as text, for the other tasks."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> TaskPlace:
        """The reverse."""
        return cls(**json.loads(text))


def rank_tasks(places: Sequence[TaskPlace]) -> list[WorkerRanks]:
    """Returns the ranks of each task, by task: host by host, the host of task 0 first, and on each
    host in the order of tasks. So task 0 is rank 0."""
    order = host_by_host([place.host for place in places])
    ranks = dict(zip(order, ranks_on([places[task].host for task in order]), strict=True))
    return [ranks[task] for task in range(len(places))]
