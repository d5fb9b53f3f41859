"""What the launcher and its agent on another host say to each other, as lines of JSON.

Lines, since what stands between them (`srun`) may hold back what is none. What a worker has written
is passed on in pieces, as it came, as the characters of the same numbers (Latin-1). An empty line
is a sign of life, and answered by another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from lockstitch.link.codec import Codec

HELLO: Final = b"lockstitch-agent "
"""What the first line of an agent begins with. Whatever came before it is of somebody else: the
greeting of a login shell, say."""


@dataclass(frozen=True, slots=True)
class Hello:
    """From the agent, before anything is told to it: its version of Lockstitch, and from where that
    was imported."""

    version: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Begin:
    """To the agent, first: what all workers run, the job's secret (`Secret.text`), how long a
    worker may take to obey a signal, and after how many seconds without a word the launcher passes
    for gone (0: never)."""

    command: tuple[str, ...]
    secret: str = field(repr=False)
    grace_seconds: float
    silence_seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """To the agent: start a worker, with variables of its own. `workers_here`: how many share the
    cores of the host."""

    worker: int
    variables: tuple[tuple[str, str], ...]
    workers_here: int


@dataclass(frozen=True, slots=True)
class Signal:
    """To the agent: send a signal to a worker and to what it has started; to all workers, and what
    they have left behind, where `worker` is None. SIGUSR1 is for the worker alone."""

    number: int
    worker: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """From the agent: a worker runs, as that process of its host."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class Output:
    """From the agent: what a worker has written."""

    worker: int
    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """From the agent: a worker has ended; all that it had written was told before. `code`: the
    negative number of the signal that ended it, else its exit code. `why`: what the kernel says of
    one that was killed."""

    worker: int
    code: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """From the agent: a worker could not be started."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Remark:
    """From the agent: something that the user should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Closing:
    """From the agent: it was told to end, not by the launcher, and starts no more workers."""


ToAgent = Begin | Start | Signal
FromAgent = Started | Output | Ended | NotStarted | Remark | Closing

HELLO_CODEC: Final[Codec[Hello]] = Codec(
    Hello, complaint="not the greeting of an agent", by_name=True
)
"""By name, so that other versions can be told from each other."""
TO_AGENT: Final[Codec[ToAgent]] = Codec(
    *(Begin, Start, Signal), complaint="not a message of the launcher"
)
FROM_AGENT: Final[Codec[FromAgent]] = Codec(
    *(Started, Output, Ended, NotStarted, Remark, Closing), complaint="not a message of an agent"
)
