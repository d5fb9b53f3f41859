"""What runs in the actor of a worker of rpc: it joins the group by an invitation, and leaves it.

Ray runs the program of the driver nowhere but there. So the functions and classes that the driver's
`__main__` defines come along, by value, and are put into the `__main__` of the actor: calls name
them as they would if every worker had run that program.
"""

from __future__ import annotations

import os
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle

from lockstitch import rpc
from lockstitch.ray.engine import find_ray

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Joining:
    """Who a worker is in the group, and how it gets in. `options` are for
    `TensorPipeRpcBackendOptions`; `definitions` are those of the driver's `__main__`."""

    name: str
    rank: int
    invitation: str
    definitions: bytes
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class RpcMember:
    """The actor of a worker. Calls of the group are served beside its methods. Ray shows the name
    before each line that the worker prints."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def join(self, joining: Joining, secret: str) -> str:
        """Makes this process a worker of the group; returns the address of its node. Raises what
        `init_rpc` raises."""
        os.environ.update(joining.environment)
        install_definitions(joining.definitions)
        address: str = find_ray().util.get_node_ip_address()
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=joining.invitation, address=address, secret=secret, **joining.options
        )
        rpc.init_rpc(joining.name, rank=joining.rank, rpc_backend_options=options)
        return address

    def leave(self) -> None:
        """Leaves the group, when its calls have been answered."""
        rpc.shutdown()


def main_definitions() -> bytes:
    """Returns the functions and classes that this program's `__main__` defines, by value: those
    that can be pickled."""
    main = sys.modules["__main__"]
    own = {
        name: value
        for name, value in vars(main).items()
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__"
    }
    try:
        return bytes(cloudpickle.dumps(own))
    except Exception:  # noqa: BLE001 - a global that cannot travel; which of them, is found out
        return bytes(cloudpickle.dumps({n: v for n, v in own.items() if _can_travel(v)}))


def install_definitions(content: bytes) -> None:
    """Puts what `main_definitions` has returned into this process's `__main__`."""
    main = sys.modules["__main__"]
    for name, value in cloudpickle.loads(content).items():
        setattr(main, name, value)


def _can_travel(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever a __reduce__ raises
        return False
    return True
