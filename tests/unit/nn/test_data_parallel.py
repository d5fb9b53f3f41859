"""What `DataParallel` takes, and what it does before there are any slots."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.errors import NotInitializedError
from lockstitch.nn import DataParallel, data_parallel


def test_a_slip_in_a_slots_name_says_what_there_is() -> None:
    model = DataParallel(nn.Linear(3, 2), ["cpu", "frok"])
    with pytest.raises(NotInitializedError, match="'frok' in device_ids is neither 'fork'"):
        model(torch.ones(4, 3))
    with pytest.raises(TypeError, match="'fork' is a text"):
        DataParallel(nn.Tanh(), "fork")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [DataParallel, lambda m, ids: data_parallel(m, None, ids)])
@pytest.mark.parametrize("ids", [2, torch.device("cpu")], ids=str)
def test_slots_that_are_no_list_are_a_type_error_as_in_torch(function, ids):
    with pytest.raises(TypeError, match=r'\["fork", "fork"\].* is not iterable'):
        function(nn.Tanh(), ids)
