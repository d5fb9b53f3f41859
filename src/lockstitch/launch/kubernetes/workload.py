"""What is to run on a cluster: how many workers, of which image, under which names.

Everything is checked here, before anything is written, in the words of the options of
`lockstitch manifest k8s`: a cluster would refuse most of it later, and some of it would leave pods
waiting for each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from lockstitch.launch.kubernetes.quantities import cores, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

SECRET_KEY: Final = "secret"
"""The entry of the Secret that holds the text of the job's secret."""

_MOST_WORKERS: Final = 100_000  # of the pods that an Indexed Job may have at once
_LONGEST_LABEL: Final = 63
_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"{_NAMESPACE.pattern}(\.{_NAMESPACE.pattern})*")
_LONGEST_SUBDOMAIN: Final = 253
_IMAGE: Final = re.compile(
    r"[a-zA-Z0-9]([-._a-zA-Z0-9]*)(:\d+)?(/[a-z0-9]+([-._]+[a-z0-9]+)*)*"
    r"(:[a-zA-Z0-9_][-.\w]{0,127})?(@sha256:[0-9a-f]{64})?"
)


class Kind(str, Enum):
    """The kinds of objects that the workers of a job can be."""

    JOB = "job"
    JOBSET = "jobset"
    TRAINJOB = "trainjob"
    ELASTIC = "elastic"

    def __str__(self) -> str:
        return self.value


_LONGEST_ENDING: Final = {
    # What is appended to the job's name where pods are named; of the last two it is the name of a
    # pod, which ends with a random part of five characters.
    Kind.JOB: "-{last}",
    Kind.JOBSET: "-worker-0-{last}-00000",
    Kind.TRAINJOB: "-node-0-{last}-00000",
    Kind.ELASTIC: "-founder",
}


class BadOptionError(ValueError):
    """An option of the command asks for what cannot be. `option`: its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option = option


@dataclass(frozen=True)
class Workload:
    """A job of `workers` workers, each in a pod of its own. Raises `BadOptionError`.

    `name`: of the job and of its Service, the start of the names of its pods. `secret_name`: the
    Secret of the cluster that holds the job's secret; empty for the name with "-secret".
    `command`: empty for what the image runs by itself. `namespace`: empty for the one that kubectl
    uses. `cpu`, `memory`: of each pod, in Kubernetes' words; empty for no limit. `gpus`: of each
    pod.
    """

    kind: Kind
    name: str
    workers: int
    image: str
    command: tuple[str, ...] = ()
    namespace: str = ""
    secret_name: str = ""
    cpu: str = ""
    memory: str = ""
    gpus: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= _MOST_WORKERS:
            reason = f"{self.workers} is not in the range 1<=x<={_MOST_WORKERS}"
            raise BadOptionError("--workers", reason)
        if self.gpus < 0:
            raise BadOptionError("--gpus", f"{self.gpus} is not in the range x>=0")
        self._check_names()
        if not _IMAGE.fullmatch(self.image):
            reason = f"{self.image!r} names no image, as registry.example.org/team/train:1.0 does"
            raise BadOptionError("--image", reason)
        if self.cpu:
            _checked("--cpu", cores, self.cpu)
        if self.memory:
            _checked("--memory", memory_bytes, self.memory)

    def _check_names(self) -> None:
        room = _LONGEST_LABEL - len(_LONGEST_ENDING[self.kind].format(last=self.workers - 1))
        if not _LABEL.fullmatch(self.name) or len(self.name) > room:
            raise BadOptionError(
                "--name",
                f"{self.name!r} cannot be in the DNS names of {self.workers} pods of a "
                f"{self.kind}: it is 1 to {room} of the characters a-z, 0-9 and -, begins with a "
                "letter, and does not end with -",
            )
        if self.namespace and not _is_label(self.namespace):
            reason = "at most 63 of the characters a-z, 0-9 and -, with no - at either end"
            raise BadOptionError("--namespace", f"{self.namespace!r} is no namespace: {reason}")
        if not _SUBDOMAIN.fullmatch(self.secret) or len(self.secret) > _LONGEST_SUBDOMAIN:
            reason = "labels of a-z, 0-9 and - with dots between, at most 253 characters"
            raise BadOptionError(
                "--secret-name", f"{self.secret!r} cannot be the name of a Secret: {reason}"
            )

    @property
    def secret(self) -> str:
        """The name of the cluster's Secret."""
        return self.secret_name or f"{self.name}-secret"

    @property
    def threads(self) -> int | None:
        """On how many threads a worker is to compute; None where its cores have no limit."""
        return max(1, int(cores(self.cpu))) if self.cpu else None


def _is_label(text: str) -> bool:
    return bool(_NAMESPACE.fullmatch(text)) and len(text) <= _LONGEST_LABEL


def _checked(option: str, read: Callable[[str], Decimal | int], text: str) -> None:
    try:
        read(text)
    except ValueError as error:
        raise BadOptionError(option, str(error)) from None
