"""The defaults are those that ported programs know."""

from __future__ import annotations

from torch.distributed.rpc import constants as incumbent

from lockstitch.rpc import constants


def test_constants_equal_the_incumbents() -> None:
    names = [name for name in vars(constants) if name.isupper()]
    assert len(names) == 10
    for name in names:
        assert getattr(constants, name) == getattr(incumbent, name)
