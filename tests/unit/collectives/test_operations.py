"""What every operation does before anything is submitted."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.operations import Operations


class Refusing(Operations):
    """Nothing should get as far as to be submitted."""

    def submit(self, request):
        raise AssertionError(request)

    def wait(self, handle):
        raise AssertionError(handle)


@pytest.mark.parametrize("what", [[1, 2], 3.0, None])
@pytest.mark.parametrize("operation", ["allreduce", "allgather", "broadcast", "alltoall"])
def test_what_is_no_tensor_is_refused_with_words_that_help(operation, what):
    arguments = (what, 0) if operation == "broadcast" else (what,)
    with pytest.raises(
        TypeError, match=f"a tensor is needed, not {type(what).__name__}.*as_tensor"
    ):
        getattr(Refusing(), operation)(*arguments)


def test_a_tensor_among_others_that_is_none_is_refused():
    with pytest.raises(TypeError, match="not list"):
        Refusing().grouped_allreduce([torch.ones(2), [1.0]])
