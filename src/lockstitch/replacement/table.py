"""A table of what can be replaced, under which name, and by what of ours."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from lockstitch.torch_internals.names import (
    AUTOGRAD_OF_C,
    NAMES_OF_AUTOGRAD,
    NAMES_OF_RPC,
    RPC_OF_C,
    SHARDS,
)

VARIABLE: Final = "LOCKSTITCH_REPLACE"
"""The variable of the environment that says what to replace in this process and its children."""


@dataclass(frozen=True)
class Attributes:
    """Names that are replaced in a module that itself stays."""

    place: str
    """The module."""

    ours: str
    """Our module that has values for these names."""

    names: tuple[str, ...]

    origin: str = ""
    """The module from which `place` imports them, if `place` may be imported late."""

    def is_here(self) -> bool:
        """Whether the place is imported."""
        return self.place in sys.modules


@dataclass(frozen=True)
class Incumbent:
    """A library, or a part of one, whose interface is ours too."""

    name: str
    """As people write it."""

    modules: tuple[tuple[str, str], ...] = ()
    """Modules (with all below them) and what stands in for them."""

    attributes: tuple[Attributes, ...] = ()

    needs_torch: bool = True
    """Whether it is part of torch, so that nothing happens before torch is imported."""


_PARTS: Final = "lockstitch.nn.parallel"

_TORCH_RPC: Final = Incumbent(
    "torch-rpc",
    modules=(
        ("torch.distributed.rpc", "lockstitch.rpc"),
        ("torch.distributed.autograd", "lockstitch.autograd"),
        ("torch.distributed.optim.optimizer", "lockstitch.optim.distributed"),
        ("torch.distributed.nn.api.remote_module", "lockstitch.nn.api.remote_module"),
    ),
    attributes=(
        Attributes(RPC_OF_C, "lockstitch.rpc", NAMES_OF_RPC),
        Attributes(AUTOGRAD_OF_C, "lockstitch.autograd", NAMES_OF_AUTOGRAD),
        Attributes(
            "torch.distributed.optim",
            "lockstitch.optim",
            ("DistributedOptimizer",),
            "torch.distributed.optim.optimizer",
        ),
        Attributes(
            "torch.distributed.nn",
            "lockstitch.nn",
            ("RemoteModule",),
            "torch.distributed.nn.api.remote_module",
        ),
        # What torch itself keeps by name: DistributedDataParallel looks into references, sharded
        # tensors ask for the group of workers.
        Attributes("torch.nn.parallel.distributed", "lockstitch.rpc", ("RRef",)),
        Attributes(SHARDS, "lockstitch", ("rpc",), "torch.distributed"),
    ),
)

_DATA_PARALLEL: Final = Incumbent(
    "data-parallel",
    attributes=tuple(
        Attributes(place, _PARTS, tuple(names.split()))
        for place, names in (
            ("torch.nn", "DataParallel"),
            (
                "torch.nn.parallel",
                "DataParallel data_parallel replicate scatter gather parallel_apply",
            ),
            ("torch.nn.parallel.data_parallel", "DataParallel data_parallel"),
            ("torch.nn.parallel.replicate", "replicate"),
            ("torch.nn.parallel.parallel_apply", "parallel_apply"),
            ("torch.nn.parallel.scatter_gather", "scatter scatter_kwargs gather"),
        )
    ),
)

INCUMBENTS: Final = {
    incumbent.name: incumbent
    for incumbent in (
        _TORCH_RPC,
        Incumbent("horovod", modules=(("horovod", "lockstitch.hvd"),), needs_torch=False),
        _DATA_PARALLEL,
    )
}


def parse_names(text: str) -> tuple[str, ...]:
    """Returns the names in a list separated by commas; `all` stands for each of them.

    Raises `ValueError` for one that is not known, with those that are.
    """
    names: dict[str, None] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word != "all" and word not in INCUMBENTS:
            known = ", ".join(INCUMBENTS)
            raise ValueError(f"nothing is known by the name {word!r}: say {known}, or all")
        names.update(dict.fromkeys(INCUMBENTS if word == "all" else (word,)))
    return tuple(names)
